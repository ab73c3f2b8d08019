package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/internal/slot"
)

// judgePublication checks that it publishes every row of the table, and nothing else.
func (j *databaseJudge) judgePublication() []Finding {
	c := &chart{area: Publication}
	p := j.f.publication.value
	switch {
	case j.o.Poll:
		return nil
	case j.f.publication.err != nil:
		c.unknown("publication", j.f.publication.err)
		return c.findings
	}
	faults := p.state().Faults(j.o.names())
	for _, fault := range faults {
		j.judgePublicationFault(c, fault)
	}
	if len(faults) == 0 {
		c.ok("publication", "%s brings the inserts of %s%s", j.o.Publication, j.o.Table, j.ofShard())
	}
	j.judgePublicationExtras(c)
	return c.findings
}

func (j *databaseJudge) ofShard() string {
	if j.o.Shard.Whole() {
		return ""
	}
	return " in shard " + j.o.Shard.String()
}

func (j *databaseJudge) judgePublicationFault(c *chart, fault provision.PublicationFault) {
	p := j.f.publication.value
	table, there := j.f.tables.value.Tables[j.o.Table.Name]
	says := fmt.Sprintf("publication %s: %s", j.o.Publication, fault.Says)
	limited := fault.Kind == provision.PublicationWithRowFilter || fault.Kind == provision.PublicationWithColumnList
	repair := sql("%s", fault.Fix)
	if limited && p.Others > 0 {
		repair = nil
		for _, statement := range provision.ReplaceTableSQL(j.o.names()) {
			repair = lines(repair, sql("%s", statement))
		}
	}
	switch fault.Kind {
	case provision.PublicationMissing:
		fix := j.setupCommand().noted("as the owner of the table")
		if there {
			fix = lines(repair.safe(), fix.orElse())
		}
		c.wrong("publication", fix, "publication %s does not exist: nothing streams", j.o.Publication)
	case provision.PublicationByPartition:
		if there && table.partitioned() {
			c.wrong("partition_root", repair, "%s, and the relay looks for those of %s", says, j.o.Table)
		} else {
			c.warn("partition_root", repair, "%s, once it has partitions", says)
		}
	case provision.PublicationWithRowFilter:
		if p.Filter == "" {
			c.wrong("row_filter", repair, "%s: rows of other shards stream, and are published twice", says)
			break
		}
		c.wrong("row_filter", repair, "%s, %s: rows that it hides do not stream", says, p.Filter)
	case provision.PublicationWithColumnList:
		c.wrong("column_list", repair, "%s, %s: the relay needs all columns", says, p.Columns)
	case provision.PublicationOfAnotherOutbox:
		fix := j.ownNames()
		if p.NoTable {
			fix = hintFix(fault.Fix)
		}
		c.wrong("publication", fix, "%s: nothing streams", says)
	case provision.PublicationWithoutTable:
		if there {
			c.wrong("publication", repair.safe(), "%s: nothing streams", says)
		}
	default:
		c.wrong("publication", repair, "%s: nothing streams", says)
	}
}

// judgePublicationExtras reports what else it publishes. Others may rely on it.
func (j *databaseJudge) judgePublicationExtras(c *chart) {
	p := j.f.publication.value
	if !p.Exists {
		return
	}
	var more []string
	for name, is := range map[string]bool{"updates": p.Update, "deletes": p.Delete, "truncates": p.Truncate} {
		if is {
			more = append(more, name)
		}
	}
	slices.Sort(more)
	own := remark("-- if others rely on it, give the relay its own: " +
		"cdc-relay setup --publication NAME, and --publication NAME for run")
	switch {
	case len(more) > 0:
		c.warn("insert_only", lines(sql("ALTER PUBLICATION %s SET (publish = 'insert')", quote(j.o.Publication)), own),
			"publication %s brings %s as well: every delete of the relay is decoded again, "+
				"and applications can no longer delete from tables without a primary key",
			j.o.Publication, strings.Join(more, ", "))
	default:
		c.ok("insert_only", "it brings inserts only")
	}
	switch {
	case p.AllTables:
		c.warn("other_tables",
			lines(sql("DROP PUBLICATION %s", quote(j.o.Publication)).noted("others may rely on it"), j.setupCommand()),
			"publication %s is FOR ALL TABLES: the server decodes and sends rows that the relay discards",
			j.o.Publication)
	case len(p.Outboxes) > 0 && p.HasTable:
		c.warn("other_tables", j.ownNames(),
			"publication %s brings other outboxes as well: the server decodes and sends rows that the relay discards",
			j.o.Publication)
	case p.Others > 0 && len(p.Outboxes) == 0:
		c.warn("other_tables", lines(sql("%s", provision.SetTableSQL(j.o.names())), own),
			"publication %s has %d other tables: the server decodes and sends rows that the relay discards",
			j.o.Publication, p.Others)
	}
}

// ownNames gives the table its own slot and publication. A change of the publication could stop another relay.
func (j *databaseJudge) ownNames() fix {
	return command("%s", j.o.names().OwnSetup()).noted("and run with the same names: each outbox has its own")
}

// slot returns the relay's own slot.
func (j *databaseJudge) slot() slot.Slot {
	for _, s := range j.f.slots.value.Slots {
		if s.Name == j.o.Slot {
			return s
		}
	}
	return slot.Slot{}
}

// streaming: a relay of the table owns the slot.
func (j *databaseJudge) streaming() bool { return j.slot().Relayed(j.o.Table) }

// judgeSlot checks that the slot can be used, who uses it, and how much WAL it retains.
func (j *databaseJudge) judgeSlot() []Finding {
	c := &chart{area: Slot}
	switch s := j.slot(); {
	case j.o.Poll:
		return nil
	case j.f.slots.err != nil:
		c.unknown("slot", j.f.slots.err)
		return c.findings
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
		c.warn("slot", sql("%s", slot.DropSQL(s.Name)),
			"this standby has a slot %s of its own, as a demoted primary does: nobody reads it, "+
				"and it retains %s of WAL", s.Name, size(s.RetainedBytes))
	default:
		if j.judgeSlotItself(c, s) {
			j.judgeOwner(c, s)
			j.judgeLag(c, s)
			j.judgeFailover(c, s)
		}
	}
	if others := provision.OtherSlotsOf(j.f.slots.value.Slots, j.o.names()); len(others) > 0 {
		left := provision.LeftBehind(j.o.names(), others)
		c.warn("shards", hintFix(left.Fix),
			"%s, for another number of shards: a slot that nobody uses retains WAL", left.What)
	}
	for _, rival := range provision.Rivals(j.f.slots.value.Slots, j.o.names()) {
		found := provision.RivalProblem(rival, j.o.names())
		c.wrong("active", hintFix(found.Fix), "%s", found.What)
	}
	j.judgeKeepSize(c)
	j.judgeIdleTimeout(c)
	return c.findings
}

// judgeSlotItself reports whether the relay can use the slot.
func (j *databaseJudge) judgeSlotItself(c *chart, s slot.Slot) bool {
	recreate := lines(sql("%s", slot.DropSQL(s.Name)), j.setupCommand(), remark("-- a running relay does this itself"))
	if found := s.Unusable(); found != nil {
		fix := remark("# choose another name with --slot (CDC_RELAY_SLOT), for setup and run: "+
			"cdc-relay setup%s --slot NAME", j.tableFlag())
		if !s.Active() {
			fix = lines(fix, remark("-- or, if nobody needs it: %s;", slot.DropSQL(s.Name)))
		}
		c.wrong("slot", fix, "%s", found)
		return false
	}
	switch {
	case s.Lost():
		why := strings.TrimSpace("the server invalidated slot " + s.Name + because(s.Invalidated))
		c.wrong("slot", recreate, "%s: its WAL is gone. Nothing is lost: the rows are in the table", why)
		return false
	case s.LagBytes < 0:
		c.wrong("slot", recreate,
			"slot %s is %s ahead of the server's WAL, as after a restore or a failover: it would skip rows",
			s.Name, size(-s.LagBytes))
		return false
	case s.Temporary:
		c.wrong("slot", remark("# end the session that owns it, or choose another name with --slot"),
			"slot %s is a temporary one of another session", s.Name)
		return false
	}
	c.ok("slot", "%s, %s, of this database", s.Name, s.Plugin)
	return true
}

// because appends the server's reason to a sentence.
func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

func (j *databaseJudge) judgeOwner(c *chart, s slot.Slot) {
	taken := s.Taken(j.o.Table)
	switch {
	case taken != nil:
		c.wrong("active", hintFix(taken.Fix),
			"%s: no relay of the table streams; a running relay publishes from the table", taken.What)
	case s.Active():
		c.ok("active", "owned by %s", s.Process)
	case len(provision.Rivals(j.f.slots.value.Slots, j.o.names())) > 0: // judgeSlot reports it
	default:
		nobody := "nobody owns the slot"
		if s.InactiveSeconds != nil && *s.InactiveSeconds > 0 {
			nobody = "nobody has owned the slot for " + span(time.Duration(*s.InactiveSeconds)*time.Second)
		}
		run := command("cdc-relay run%s%s", j.tableFlag(), j.slotFlags())
		c.warn("active", run.noted("or, if no relay is to run any more: cdc-relay teardown%s%s",
			j.tableFlag(), j.slotFlags()),
			"%s: no relay streams, and the slot retains WAL", nobody)
	}
}

// Above this, unconfirmed WAL endangers the disk.
const muchWAL = 10 << 30

func (j *databaseJudge) judgeLag(c *chart, s slot.Slot) {
	left := ""
	if s.SafeBytes != nil {
		left = fmt.Sprintf("; %s more until the server invalidates the slot", size(max(*s.SafeBytes, 0)))
	}
	says := fmt.Sprintf("%s not confirmed, %s of WAL retained%s%s",
		size(s.LagBytes), size(s.RetainedBytes), because(s.WALStatus), left)
	switch {
	case s.WALStatus == "unreserved":
		c.warn("lag", remark("-- nothing needs to be done: the relay recreates a lost slot. "+
			"What delays it: SELECT * FROM pg_stat_replication;"),
			"%s: the server invalidates the slot at the next checkpoint", says)
	case s.RetainedBytes > muchWAL && s.SafeBytes == nil:
		c.wrong("lag", j.limitWAL(), "%s, without a limit: the server's disk fills up", says)
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

func (j *databaseJudge) judgeFailover(c *chart, s slot.Slot) {
	if j.server.major() < 17 {
		return
	}
	waited := j.f.slots.value.Standbys
	switch {
	case s.Failover && len(waited) > 0:
		c.warn("failover", lines(remark("# start the standby; or, until it is back:"),
			j.service.setting("synchronized_standby_slots", "", false)),
			"the stream waits for standbys that are down (synchronized_standby_slots: %s): "+
				"rows are published from the table", strings.Join(waited, ", "))
	case s.Failover:
		c.ok("failover", "on: a standby with sync_replication_slots has a copy")
	case j.o.FailoverSlot:
		c.warn("failover", lines(remark("-- stop the relays, or restart one with --failover-slot:"), j.setupCommand()),
			"slot %s is no failover slot: a standby has no copy", s.Name)
	case slices.ContainsFunc(j.f.slots.value.Slots, func(other slot.Slot) bool { return other.Failover }):
		c.warn("failover", lines(remark("-- stop the relays, then:"),
			command("cdc-relay setup%s%s --failover-slot", j.tableFlag(), j.slotFlags())),
			"slot %s is no failover slot, and the server has others: was it recreated?", s.Name)
	default:
		c.ok("failover", "off: after a failover the relay recreates the slot and scans the table")
	}
}

// enoughWAL is the recommended limit.
func (j *databaseJudge) enoughWAL() int64 { return max(muchWAL, 2*j.bytes("max_wal_size")) }

func (j *databaseJudge) limitWAL() fix {
	return j.service.setting("max_slot_wal_keep_size", fmt.Sprintf("%dGB", j.enoughWAL()>>30), false)
}

// judgeKeepSize: a limit is safe for this relay.
func (j *databaseJudge) judgeKeepSize(c *chart) {
	limit, small := j.bytes("max_slot_wal_keep_size"), int64(1<<30)
	others := j.others()
	const safe = "For this relay a limit is safe: it recreates an invalidated slot and scans the table"
	switch {
	case limit < 0 && len(others) > 0:
		c.warn("max_slot_wal_keep_size",
			lines(j.limitWAL(), remark("-- check the other slots first: the limit applies to them, too")),
			"no limit: while all relays are stopped, WAL fills the disk. %s. "+
				"But the server has other slots, which it may harm: %s", safe, strings.Join(others, ", "))
	case limit < 0:
		c.warn("max_slot_wal_keep_size", j.limitWAL(),
			"no limit: while all relays are stopped, WAL fills the disk. %s", safe)
	case limit < small:
		c.warn("max_slot_wal_keep_size", j.limitWAL(),
			"%s is little: one large transaction of any application can invalidate the slot. %s", size(limit), safe)
	default:
		c.ok("max_slot_wal_keep_size", "%s. %s", size(limit), safe)
	}
}

func (j *databaseJudge) others() []string {
	var names []string
	for _, s := range j.f.slots.value.Slots {
		if s.Name != j.o.Slot && !s.Lost() && !j.o.names().Sibling(s.Name) {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	if len(names) > 5 {
		names = append(names[:5], fmt.Sprintf("and %d more", len(names)-5))
	}
	return names
}

func (j *databaseJudge) judgeIdleTimeout(c *chart) {
	timeout, known := j.duration("idle_replication_slot_timeout")
	switch {
	case !known: // not before Postgres 18
	case timeout == 0:
		c.ok("idle_replication_slot_timeout", "off: the slot of stopped relays stays, within max_slot_wal_keep_size")
	default:
		c.ok("idle_replication_slot_timeout",
			"%s: relays that were stopped for longer find no slot, recreate it and scan the table; nothing is lost",
			span(timeout))
	}
}
