package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/internal/slot"
)

const standbysSQL = `
SELECT jsonb_agg(standby)
FROM (SELECT trim(both ' "' FROM w.standby) AS standby
      FROM pg_settings p, unnest(string_to_array(p.setting, ',')) w(standby)
      WHERE p.name = 'synchronized_standby_slots' AND p.setting <> '') waited
WHERE NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.slot_name = standby AND s.active)`

type slotsFacts struct {
	Slots []slot.Slot // all slots of the server
	// Standbys are the physical slots that a failover slot waits for and that are missing or not in use.
	Standbys []string
}

func askSlots(ctx context.Context, s *session) (a answer[slotsFacts]) {
	all := read(ctx, s, func(tx pgx.Tx) ([]slot.Slot, error) { return slot.List(ctx, tx.Conn().PgConn()) })
	if a.value.Slots, a.err = all.value, all.err; a.err == nil {
		standbys := ask[[]string](ctx, s, standbysSQL)
		a.value.Standbys, a.err = standbys.value, standbys.err
	}
	return a
}

// judgeSlot checks that the slot can be used, who uses it, and how much WAL it retains.
func (j *databaseJudge) judgeSlot(c chart) {
	switch s := j.slot; {
	case c.unknown("slot", j.f.slots.err):
		return
	case !s.Exists() && j.server.InRecovery: // the primary has it
	case !s.Exists() && j.absent:
		j.judgeSlotBlockers(c)
	case !s.Exists():
		c.wrong("slot", lines(j.setupCommand(),
			remark("-- or start the relay: it creates the slot itself, if its role may replicate")),
			"slot %s does not exist: nothing streams", j.o.Slot)
		j.judgeSlotBlockers(c)
	case s.Creating() && s.Here:
		c.warn("slot", remark("-- wait until the transactions end that were open when it began, or end them"),
			"slot %s is being created by %s: nothing streams yet, and rows are swept", s.Name, s.Process)
		j.judgeSlotBlockers(c)
	case j.server.InRecovery && s.Here && !s.Active() && !s.Synced:
		c.warn("slot", sql("%s", slot.DropSQL(s.Name)), "this standby has a slot %s of its own, as a demoted primary "+
			"does: nobody reads it, and it retains %s of WAL", s.Name, show.Bytes(s.RetainedBytes))
	default:
		if j.judgeSlotItself(c, s) {
			j.judgeOwner(c, s)
			j.judgeLag(c, s)
			j.judgeFailover(c, s)
		}
	}
	if others := provision.OtherSlotsOf(j.slots, j.o.names()); len(others) > 0 {
		left := provision.LeftBehind(j.o.names(), others)
		c.warn("shards", hintFix(left.Fix),
			"%s, for another number of shards: a slot that nobody uses retains WAL", left.What)
	}
	for _, rival := range provision.Rivals(j.slots, j.o.names()) {
		found := provision.RivalProblem(rival, j.o.names())
		c.wrong("active", hintFix(found.Fix), "%s", found.What)
	}
	j.judgeOtherSlots(c)
	j.judgeRows(c)
}

// mostOtherSlots is how many are reported one by one: those that retain most.
const mostOtherSlots = 5

// judgeOtherSlots names slots of others that nobody uses, and that fill the disk.
func (j *databaseJudge) judgeOtherSlots(c chart) {
	others := slices.DeleteFunc(j.others(), func(o slot.Slot) bool { return !o.Abandoned() })
	for _, o := range others[:min(len(others), mostOtherSlots)] {
		of := o.Type + " slot"
		if o.Database != "" {
			of += " of database " + quote(o.Database)
		}
		c.about(o.Name).warn("other_slot", remark("-- ask its owner, who loses the position in the WAL, "+
			"or the standby that needs it; then: %s;", slot.DropSQL(o.Name)),
			"slot %s, a %s, retains %s of WAL, and nobody uses it: the disk can fill up",
			o.Name, of, show.Bytes(o.RetainedBytes))
	}
	if more := len(others) - mostOtherSlots; more > 0 {
		c.warn("other_slot", sql("SELECT slot_name, slot_type, database, restart_lsn FROM pg_replication_slots "+
			"WHERE NOT active ORDER BY restart_lsn"), "%s WAL, and nobody uses them",
			counted(more, "more slot retains", "more slots retain"))
	}
}

// A younger transaction has probably ended before anybody reads the report.
const (
	passing     = time.Second
	passingXIDs = 1000
)

// judgeSlotBlockers: the creation of a slot waits for all open transactions that have written, in every database.
func (j *databaseJudge) judgeSlotBlockers(c chart) {
	for _, t := range j.f.transactions.value.Writers {
		if t.Age != 0 && t.Age < passing.Seconds() || t.Age == 0 && t.XIDAge < passingXIDs {
			continue
		}
		c.about(cmp.Or(t.GID, strconv.FormatInt(t.PID, 10))).warn("slot_blocker", hintFix(t.End()),
			"the creation of the slot waits for the transaction of %s, which has written", t.Blocker)
	}
}

// judgeSlotItself reports whether the relay can use the slot.
func (j *databaseJudge) judgeSlotItself(c chart, s slot.Slot) bool {
	drop := slot.DropSQL(s.Name)
	recreate := lines(sql("%s", drop), j.setupCommand(), remark("-- a running relay does this itself"))
	found := s.Unusable()
	switch {
	case found != nil:
		fix := remark("# choose another name with --slot (CDC_RELAY_SLOT), for setup and run: "+
			"cdc-relay setup%s --slot NAME", j.tableFlag())
		if !s.Active() {
			fix = lines(fix, remark("-- or, if nobody needs it: %s;", drop))
		}
		c.wrong("slot", fix, "%s", found)
	case s.Lost():
		c.wrong("slot", recreate, "the server invalidated slot %s%s: its WAL is gone. "+
			"Nothing is lost: the rows are in the table", s.Name, because(s.Invalidated))
	case s.LagBytes < 0:
		c.wrong("slot", recreate,
			"slot %s is %s ahead of the server's WAL, as after a restore or a failover: it would skip rows",
			s.Name, show.Bytes(-s.LagBytes))
	case s.Temporary:
		c.wrong("slot", remark("# end the session that owns it, or choose another name with --slot"),
			"slot %s is a temporary one of another session", s.Name)
	default:
		c.ok("slot", "%s, %s, of this database", s.Name, s.Plugin)
		return true
	}
	return false
}

// because appends the server's reason to a sentence.
func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

func (j *databaseJudge) judgeOwner(c chart, s slot.Slot) {
	taken := s.Taken(j.o.Table)
	switch {
	case taken != nil:
		c.wrong("active", hintFix(taken.Fix),
			"%s: no relay of the table streams; a running relay publishes from the table", taken.What)
	case s.Active():
		c.ok("active", "owned by %s", s.Process)
	case len(provision.Rivals(j.slots, j.o.names())) > 0: // judgeSlot reports it
	default:
		nobody := "nobody owns the slot"
		if s.InactiveSeconds != nil && *s.InactiveSeconds > 0 {
			nobody = "nobody has owned the slot for " + span(time.Duration(*s.InactiveSeconds)*time.Second)
		}
		switch r, flags := j.f.relays, j.tableFlag()+j.slotFlags(); {
		case r.NotStreaming != "":
			c.warn("active", hintFix(r.Fix), "%s: %s runs and cannot stream, and publishes from the table: %s",
				nobody, r.NotStreaming, r.Detail)
		case len(r.Missed) > 0:
			c.warn("active", remark("# %s", show.Restart), "%s: no relay streams, and the slot retains WAL; %s",
				nobody, strings.Join(r.Missed, "; "))
		default:
			c.warn("active", command("cdc-relay run%s", flags).
				noted("or, if no relay is to run any more: cdc-relay teardown%s", flags),
				"%s: no relay streams, and the slot retains WAL", nobody)
		}
	}
}

// Above this, unconfirmed WAL endangers the disk.
const muchWAL = 10 << 30

func (j *databaseJudge) judgeLag(c chart, s slot.Slot) {
	says := fmt.Sprintf("%s not confirmed, %s of WAL retained%s",
		show.Bytes(s.LagBytes), show.Bytes(s.RetainedBytes), because(s.WALStatus))
	if s.SafeBytes != nil {
		says += fmt.Sprintf("; %s more until the server invalidates the slot", show.Bytes(max(*s.SafeBytes, 0)))
	}
	switch {
	case s.WALStatus == "unreserved":
		c.warn("lag", remark("-- nothing needs to be done: the relay recreates a lost slot. "+
			"What delays it: SELECT * FROM pg_stat_replication;"),
			"%s: the server invalidates the slot at the next checkpoint", says)
	case s.RetainedBytes > muchWAL && s.SafeBytes == nil:
		c.wrong("lag", j.cure([]string{j.limit()}), "%s, without a limit: the server's disk fills up", says)
	case s.Active() && s.LagBytes > 1<<30:
		c.warn("lag", lines(
			sql("SELECT pid, state, sent_lsn, flush_lsn, pg_catalog.pg_size_pretty("+
				"pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), flush_lsn)) FROM pg_stat_replication"),
			remark("-- a large transaction is being decoded, or the relay cannot keep up")),
			"%s: the stream lags behind; rows are swept meanwhile", says)
	default:
		c.ok("lag", "%s", says)
	}
}

func (j *databaseJudge) judgeFailover(c chart, s slot.Slot) {
	waited := j.f.slots.value.Standbys
	switch {
	case j.server.major() < 17:
	case s.Failover && len(waited) > 0:
		c.warn("failover", lines(remark("# start the standby; or, until it is back:"),
			j.service.setting("synchronized_standby_slots", "", false)),
			"the stream waits for standbys that are down (synchronized_standby_slots: %s): "+
				"rows are published from the table", strings.Join(waited, ", "))
	case s.Failover:
		c.ok("failover", "on: a standby with sync_replication_slots has a copy")
	case j.o.FailoverSlot:
		c.warn("failover", lines(remark("-- stop the relays, then:"), j.setupCommand()),
			"slot %s is no failover slot: a standby has no copy", s.Name)
	case slices.ContainsFunc(j.slots, func(other slot.Slot) bool { return other.Failover }):
		c.warn("failover", lines(remark("-- stop the relays, then:"),
			command("cdc-relay setup%s%s --failover-slot", j.tableFlag(), j.slotFlags())),
			"slot %s is no failover slot, and the server has others: was it recreated?", s.Name)
	default:
		c.ok("failover", "off: after a failover the relay recreates the slot and scans the table")
	}
}

// limit is the recommended one, as checks.sql writes a fix.
func (j *databaseJudge) limit() string {
	return fmt.Sprintf("set max_slot_wal_keep_size %dGB", max(10, 2*j.server.MaxWAL>>10))
}

// others returns the slots of others.
func (j *databaseJudge) others() []slot.Slot {
	return slot.Others(j.slots, func(name string) bool { return name == j.o.Slot || j.o.names().Sibling(name) })
}

func (j *databaseJudge) otherNames() string {
	var names []string
	for _, o := range j.others() {
		names = append(names, o.Name)
	}
	slices.Sort(names)
	if len(names) > 5 {
		names = append(names[:5], fmt.Sprintf("and %d more", len(names)-5))
	}
	return strings.Join(names, ", ")
}
