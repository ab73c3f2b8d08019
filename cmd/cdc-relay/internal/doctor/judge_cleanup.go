package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// A transaction older than this is reported: it holds back VACUUM, and the effect grows with its age. The limits are
// lower for idle and prepared transactions, which should have ended at once.
const (
	oldTransaction  = 5 * time.Minute
	idleTransaction = 10 * time.Second
	oldXIDs         = 100_000 // if the role may not see the time
)

func (t transaction) old() bool {
	if t.GID != "" || strings.HasPrefix(t.State, "idle in transaction") {
		return t.age() >= idleTransaction
	}
	return t.age() >= oldTransaction
}

// judgeCleanup reports what keeps dead rows of the outbox from being removed.
func (j *databaseJudge) judgeCleanup() []Finding {
	c := &chart{area: Cleanup}
	j.judgeTransactions(c)
	j.judgePrepared(c)
	j.judgeStandbyHorizon(c)
	j.judgeDead(c)
	j.judgeAutovacuum(c)
	return c.findings
}

// judgeTransactions: an open transaction does not affect the stream. But dead rows stay because of it, and sweeps
// become slower.
func (j *databaseJudge) judgeTransactions(c *chart) {
	if j.f.transactions.err != nil {
		c.unknown("transactions", j.f.transactions.err)
		return
	}
	here := slices.Clone(j.f.transactions.value.Sessions)
	here = slices.DeleteFunc(here, func(t transaction) bool { return !t.Here })
	blind := ""
	if role := j.f.role.value; !role.SeesOthers {
		blind = fmt.Sprintf(" (what other roles do is hidden from role %q; to see it: GRANT pg_read_all_stats TO %s)",
			role.Name, j.role())
	}
	hidden := slices.IndexFunc(j.f.transactions.value.Writers,
		func(t transaction) bool { return t.Age == 0 && t.XIDAge >= oldXIDs })
	// A session that should have ended is worse than an older busy one.
	at := max(slices.IndexFunc(here, transaction.old), 0)
	switch {
	case hidden >= 0:
		t := j.f.transactions.value.Writers[hidden]
		c.warn("transactions", hintFix(problem.EndSession(int64(t.PID))),
			"pid %d (%s) has a transaction open%s: "+
				"dead rows of the outbox stay until it ends, if it is in this database%s",
			t.PID, t.who(), t.since(), blind)
	case len(here) == 0:
		c.ok("transactions", "none delays the removal of dead rows%s", blind)
	case !here[at].old():
		c.ok("transactions",
			"the oldest is open for %s: pid %d (%s)%s", span(here[0].age()), here[0].PID, here[0].who(), blind)
	default:
		t := here[at]
		c.warn("transactions", hintFix(problem.EndSession(int64(t.PID))),
			"pid %d (%s) has a transaction open for %s: dead rows of the outbox stay until it ends. "+
				"The stream is not affected; sweeps become slower", t.PID, t.who(), span(t.age()))
	}
}

func (t transaction) who() string {
	var known []string
	for _, part := range []string{t.User, t.Program, t.State} {
		if part != "" {
			known = append(known, part)
		}
	}
	return strings.Join(known, ", ")
}

// judgePrepared: a prepared transaction outlives its session and every restart.
func (j *databaseJudge) judgePrepared(c *chart) {
	for _, t := range j.f.transactions.value.Prepared {
		if !t.old() {
			c.ok("prepared_transactions", "%s is open for %s", outbox.QuoteLiteral(t.GID), span(t.age())).about(t.GID)
			continue
		}
		c.warn("prepared_transactions", hintFix(problem.EndPrepared(t.GID)),
			"transaction %s of role %q in database %q is prepared and open for %s: "+
				"dead rows stay, and no slot can be created",
			outbox.QuoteLiteral(t.GID), t.User, t.Database, span(t.age())).about(t.GID)
	}
}

// judgeSlotBlockers: the creation of a slot waits for all open transactions that have written, in every database.
func (j *databaseJudge) judgeSlotBlockers(c *chart) {
	for _, t := range j.f.transactions.value.Writers {
		if t.Age != 0 && t.age() < passing || t.Age == 0 && t.XIDAge < passingXIDs {
			continue
		}
		c.warn("slot_blocker", hintFix(problem.EndSession(int64(t.PID))),
			"the creation of the slot waits for pid %d (%s), which has written and is open%s",
			t.PID, t.who(), t.since()).about(strconv.Itoa(t.PID))
	}
}

// A younger transaction has probably ended before anybody reads the report.
const (
	passing     = time.Second
	passingXIDs = 1000
)

// since says how long the transaction has been open, if the role may see that.
func (t transaction) since() string {
	if t.Age == 0 {
		return fmt.Sprintf(", by %d transactions", t.XIDAge)
	}
	return " for " + span(t.age())
}

// Some millions of transactions: what a standby's query may hold back for hours.
const oldHorizon = 5_000_000

// judgeStandbyHorizon checks hot_standby_feedback, through a slot or a connection.
func (j *databaseJudge) judgeStandbyHorizon(c *chart) {
	for _, s := range j.f.slots.value.Slots {
		if s.Xmin == "" || s.Active() && s.XminAge < oldHorizon {
			continue
		}
		if !s.Active() {
			c.warn("standby_horizon", sql("%s", slot.DropSQL(s.Name)).noted("if the standby does not come back"),
				"slot %s prevents the removal of dead rows, for a standby that is not connected", s.Name).about(s.Name)
			continue
		}
		c.warn("standby_horizon", remark("-- on the standby, end the query that is open: "+
			"SELECT pid, now() - xact_start, query FROM pg_stat_activity ORDER BY xact_start;"),
			"a query on the standby of slot %s delays the removal of dead rows by %d transactions",
			s.Name, s.XminAge).about(s.Name)
	}
	for _, t := range j.f.transactions.value.Feedback {
		if t.XIDAge >= oldHorizon {
			c.warn("standby_horizon", remark("-- on the standby, end the query that is open: "+
				"SELECT pid, now() - xact_start, query FROM pg_stat_activity ORDER BY xact_start;"),
				"a query on the standby %s delays the removal of dead rows by %d transactions",
				t.Program, t.XIDAge).about(t.Program)
		}
	}
}

// Above these numbers sweeps become slower. Below them, it only matters that nobody removes dead rows.
const (
	manyDead   = 100_000
	someDead   = 10_000
	longUntidy = 10 * time.Minute
)

// crowded: dead rows are a large part of the table, and more than a burst leaves.
func (d deadFacts) crowded() bool {
	untidy := d.Since < 0 || time.Duration(d.Since)*time.Second > longUntidy
	return d.Dead > d.Live/5 && (d.Dead > manyDead || d.Dead > someDead && untidy)
}

func (j *databaseJudge) judgeDead(c *chart) {
	if _, there := j.f.tables.value.Tables[j.o.Table.Name]; !there {
		return
	}
	if j.f.dead.err != nil {
		c.unknown("dead_rows", j.f.dead.err)
		return
	}
	d := j.f.dead.value
	last := "never vacuumed"
	if d.Since >= 0 {
		last = "vacuumed " + span(time.Duration(d.Since)*time.Second) + " ago"
	}
	says := fmt.Sprintf("about %d dead rows and %d live ones, %s", d.Dead, d.Live, last)
	if d.crowded() {
		c.warn("dead_rows",
			sql("VACUUM (ANALYZE) %s", j.o.Table.Printed()).noted("frees nothing while a transaction above is open"),
			"%s: scans of the table take longer", says)
		return
	}
	c.ok("dead_rows", "%s", says)
}

// queueSettings are the settings that migrations/sql gives the table, so that autovacuum starts early and runs at full
// speed.
func queueSettings() []string {
	return []string{
		"autovacuum_vacuum_scale_factor=0", "autovacuum_vacuum_threshold=1000", "autovacuum_vacuum_cost_delay=0",
	}
}

func (j *databaseJudge) judgeAutovacuum(c *chart) {
	table, there := j.f.tables.value.Tables[j.o.Table.Name]
	name := j.o.Table.Printed()
	switch {
	case j.setting("autovacuum") == "off" || j.setting("track_counts") == "off":
		which := "autovacuum"
		if j.setting(which) != "off" {
			which = "track_counts"
		}
		c.warn("autovacuum", j.service.setting(which, "on", false),
			"%s is off on this server: dead rows pile up until the server stops for fear of wraparound", which)
	case !there || table.partitioned(): // partitions have settings of their own
	case slices.ContainsFunc(table.Options, switchesOff):
		c.warn("autovacuum", sql("ALTER TABLE %s RESET (autovacuum_enabled)", name).safe(),
			"autovacuum is off for %s: dead rows pile up, and scans of the table take longer", j.o.Table)
	default:
		missing := slices.DeleteFunc(queueSettings(), func(s string) bool { return !laxer(table.Options, s) })
		if len(missing) > 0 {
			c.warn("autovacuum", sql("ALTER TABLE %s SET (%s)", name, strings.Join(missing, ", ")).safe(),
				"%s lacks settings of a queue: without them, autovacuum comes late or slowly", j.o.Table)
			return
		}
		c.ok("autovacuum", "on, after 1000 dead rows or fewer")
	}
}

func switchesOff(option string) bool {
	value, found := strings.CutPrefix(option, "autovacuum_enabled=")
	return found && slices.Contains([]string{"false", "off", "no", "0"}, strings.ToLower(value))
}

// laxer reports whether the table's value is missing or higher than the wanted one.
func laxer(options []string, wanted string) bool {
	name, text, _ := strings.Cut(wanted, "=")
	most, _ := strconv.ParseFloat(text, 64)
	for _, option := range options {
		if value, found := strings.CutPrefix(option, name+"="); found {
			n, err := strconv.ParseFloat(strings.TrimSuffix(value, "ms"), 64)
			return err != nil || n > most
		}
	}
	return true
}
