package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

const transactionsSQL = `
SELECT jsonb_build_object(
  'sessions', (SELECT jsonb_agg(to_jsonb(x)) FROM (
     SELECT pid, usename AS "user", application_name AS program, datname AS database, state,
            datname IS NOT DISTINCT FROM current_database() AS here,
            extract(epoch FROM clock_timestamp() - xact_start) AS age
     FROM pg_stat_activity a
     WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
       AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL) AND NOT ` + problem.IsRelaySQL + `
     ORDER BY xact_start LIMIT 20) x),
  'prepared', (SELECT jsonb_agg(to_jsonb(x)) FROM (
     SELECT gid, owner AS "user", database, database = current_database() AS here,
            extract(epoch FROM clock_timestamp() - prepared) AS age
     FROM pg_prepared_xacts ORDER BY prepared LIMIT 20) x),
  'writers', (SELECT jsonb_agg(to_jsonb(x)) FROM (` + problem.WritersSQL + `) x),
  'feedback', (SELECT jsonb_agg(to_jsonb(x)) FROM (
     SELECT pid, usename AS "user", application_name AS program, age(backend_xmin) AS xidage
     FROM pg_stat_replication WHERE backend_xmin IS NOT NULL ORDER BY age(backend_xmin) DESC LIMIT 20) x))`

type transactionFacts struct {
	Sessions, Prepared []transaction // the oldest first
	// Writers are those of problem.WritersSQL. A role may not see since when those of others are open.
	Writers []writer
	// Feedback are walsenders that hold back VACUUM for a standby (hot_standby_feedback).
	Feedback []transaction
}

type writer struct {
	problem.Blocker
	Age    float64 // seconds; 0: unknown
	XIDAge int64   // in transactions
}

type transaction struct {
	PID                                 int
	GID, User, Program, Database, State string
	Age                                 float64 // seconds; 0: unknown
	XIDAge                              int64   // in transactions
	Here                                bool    // in this database, so its dead rows stay
}

func (t transaction) age() time.Duration { return time.Duration(t.Age * float64(time.Second)) }

// who names what is known of user, program and state.
func (t transaction) who() string {
	known := []string{t.User, t.Program, t.State}
	return strings.Join(slices.DeleteFunc(known, func(part string) bool { return part == "" }), ", ")
}

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

// judgeTransactions: an open transaction does not affect the stream. But dead rows stay because of it, and sweeps
// become slower.
func (j *databaseJudge) judgeTransactions(c chart) {
	if c.unknown("transactions", j.f.transactions.err) {
		return
	}
	all := j.f.transactions.value
	here := slices.DeleteFunc(slices.Clone(all.Sessions), func(t transaction) bool { return !t.Here })
	blind := ""
	if !j.role.SeesOthers {
		blind = fmt.Sprintf(" (what other roles do is hidden from role %q; to see it: GRANT pg_read_all_stats TO %s)",
			j.role.Name, j.grantee())
	}
	hidden := slices.IndexFunc(all.Writers, func(t writer) bool { return t.Age == 0 && t.XIDAge >= oldXIDs })
	// A session that should have ended is worse than an older busy one.
	at := max(slices.IndexFunc(here, transaction.old), 0)
	switch {
	case hidden >= 0:
		t := all.Writers[hidden]
		c.warn("transactions", hintFix(t.End()), "%s has been open for %d transactions: "+
			"dead rows of the outbox stay until it ends, if it is in this database%s", t.Blocker, t.XIDAge, blind)
	case len(here) == 0:
		c.ok("transactions", "none delays the removal of dead rows%s", blind)
	case !here[at].old():
		c.ok("transactions", "the oldest is open for %s: Postgres process %d (%s)%s",
			span(here[0].age()), here[0].PID, here[0].who(), blind)
	default:
		t := here[at]
		c.warn("transactions", hintFix(problem.EndSession(int64(t.PID))),
			"Postgres process %d (%s) has a transaction open for %s: dead rows of the outbox stay until it ends. "+
				"The stream is not affected; sweeps become slower", t.PID, t.who(), span(t.age()))
	}
}

// judgePrepared: a prepared transaction outlives its session and every restart.
func (j *databaseJudge) judgePrepared(c chart) {
	for _, t := range j.f.transactions.value.Prepared {
		one, name := c.about(t.GID), outbox.QuoteLiteral(t.GID)
		if !t.old() {
			one.ok("prepared_transactions", "%s is open for %s", name, span(t.age()))
			continue
		}
		one.warn("prepared_transactions", hintFix(problem.EndPrepared(t.GID)),
			"transaction %s of role %q in database %q is prepared and open for %s: "+
				"dead rows stay, and no slot can be created", name, t.User, t.Database, span(t.age()))
	}
}

// Some millions of transactions: what a standby's query may hold back for hours.
const oldHorizon = 5_000_000

// judgeStandbyHorizon checks hot_standby_feedback, through a slot or a connection.
func (j *databaseJudge) judgeStandbyHorizon(c chart) {
	query := func(about chart, standby string, xids int64) {
		if xids >= oldHorizon {
			about.warn("standby_horizon", remark("-- on the standby, end the query that is open: "+
				"SELECT pid, now() - xact_start, query FROM pg_stat_activity ORDER BY xact_start;"),
				"a query on the standby %s delays the removal of dead rows by %d transactions", standby, xids)
		}
	}
	for _, s := range j.slots {
		one := c.about(s.Name)
		switch {
		case s.Xmin == "":
		case s.Active():
			query(one, "of slot "+s.Name, s.XminAge)
		default:
			one.warn("standby_horizon", sql("%s", slot.DropSQL(s.Name)).noted("if the standby does not come back"),
				"slot %s prevents the removal of dead rows, for a standby that is not connected", s.Name)
		}
	}
	for _, t := range j.f.transactions.value.Feedback {
		query(c.about(t.Program), t.Program, t.XIDAge)
	}
}
