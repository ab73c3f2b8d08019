package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/slot"
)

// judgeDatabase turns the facts of the database into findings.
func judgeDatabase(o Options, f databaseFacts) []Finding {
	c := &chart{area: Postgres}
	if f.unreachable != nil {
		c.wrong("reachable", fixOf(f.unreachable), "%s", f.unreachable)
		return c.findings
	}
	if f.server.err != nil {
		c.unknown("reachable", f.server.err)
		return c.findings
	}
	service := service(f.server.value.Roles)
	c.ok("reachable", "connected to %s, database %q, role %q%s",
		f.address, f.server.value.Database, f.role.value.Name, on(service.name))
	j := &databaseJudge{o: o, f: f, service: service, server: f.server.value}
	j.judgeServer(c)
	return slices.Concat(c.findings, j.judgeTables(), j.judgeGrants(), j.judgePublication(), j.judgeSlot(),
		j.judgeCleanup())
}

// databaseJudge holds what the checks share.
type databaseJudge struct {
	o       Options
	f       databaseFacts
	service managed
	server  serverFacts
}

func on(service string) string {
	if service == "" {
		return ""
	}
	return ", on " + service
}

// newestMajor is the newest version that cdc-relay knows.
const newestMajor = 19

func (j *databaseJudge) judgeServer(c *chart) {
	switch major := j.server.major(); {
	case major < pgdial.OldestMajor:
		c.wrong("version", remark("-- upgrade Postgres to %d or later", pgdial.OldestMajor),
			"Postgres %s is too old: cdc-relay supports %d to %d", j.server.Version, pgdial.OldestMajor, newestMajor)
	case major > newestMajor:
		c.warn("version", remark("# see whether a newer cdc-relay knows this Postgres"),
			"Postgres %s is newer than what this cdc-relay knows (%d to %d)",
			j.server.Version, pgdial.OldestMajor, newestMajor)
	default:
		c.ok("version", "Postgres %s", j.server.Version)
	}
	if j.server.InRecovery {
		c.wrong("primary", remark("# name the primary in --database-url, or all servers: "+
			"postgres://user@first,second/database?target_session_attrs=read-write"),
			"this server is a standby: nothing can be deleted here")
	} else {
		c.ok("primary", "accepts writes")
	}
	j.f.encryption.judge(c, "Postgres", remark("# in --database-url (CDC_RELAY_DATABASE_URL): "+
		"sslmode=verify-full, and sslrootcert=FILE for an authority of your own"), time.Now())
	j.judgeCommits(c)
	j.judgeReadOnly(c)
	j.judgeLogin(c)
	j.judgeRoleLimits(c)
	j.judgeClock(c)
	if j.f.pooler != "" {
		says := "the connection goes through a pooler such as PgBouncer (%s): "
		if !j.o.Poll && j.f.replication != nil {
			c.wrong("pooler", j.directly(), says+"the relay cannot stream through it", j.f.pooler)
		} else {
			c.warn("pooler", j.directly(),
				says+"the relay rejects one that shares server processes between transactions", j.f.pooler)
		}
	} else {
		c.ok("pooler", "none seen: the connection goes to Postgres itself")
	}
	if j.o.Poll {
		c.ok("wal_level", "%s; --mode poll needs no streaming", j.setting("wal_level"))
		return
	}
	j.judgeWAL(c)
	j.judgeRoom(c)
	j.judgeReplication(c)
	j.judgeSenderTimeout(c)
}

// judgeCommits: without the standby, published rows are not deleted, and those of applications stay invisible.
func (j *databaseJudge) judgeCommits(c *chart) {
	if waits := j.f.transactions.value; waits.Commits > 0 {
		c.wrong("commits", lines(remark("-- start the standby; or, until it is back:"),
			j.service.setting("synchronous_standby_names", "", false)),
			"the COMMIT of %d sessions waits for a synchronous standby (synchronous_standby_names: %s)",
			waits.Commits, waits.Standbys)
	}
}

// judgeReadOnly: roles and databases can have it set, and some services set it when the disk is full. The relay's
// sessions turn it off.
func (j *databaseJudge) judgeReadOnly(c *chart) {
	on := j.f.readOnly.value == "on"
	if own := j.f.role.value.ReadOnly; own != nil {
		on = *own
	}
	if !on || j.server.InRecovery {
		return
	}
	c.warn("read_only", lines(sql("SET default_transaction_read_only = off"),
		sql("ALTER ROLE %s IN DATABASE %s SET default_transaction_read_only = off",
			j.role(), quote(j.server.Database))),
		"default_transaction_read_only is on for role %q: the relay turns it off for its sessions, "+
			"but an application with this role cannot insert. Some services set it when the disk is almost full",
		j.f.role.value.Name)
}

// judgeLogin checks what a login of the relay's role would need. Its own session has it already.
func (j *databaseJudge) judgeLogin(c *chart) {
	role, database := j.f.role.value, quote(j.server.Database)
	if j.f.role.err != nil || !j.o.Administrator {
		return
	}
	if !role.Login {
		c.wrong("login", sql("ALTER ROLE %s LOGIN", j.role()), "role %q may not log in", role.Name)
	}
	if !role.Connect {
		c.wrong("login", sql("GRANT CONNECT ON DATABASE %s TO %s", database, j.role()).safe(),
			"role %q may not connect to database %q", role.Name, j.server.Database)
	}
	if role.Expired {
		c.wrong("login", sql("ALTER ROLE %s VALID UNTIL 'infinity'", j.role()),
			"the password of role %q has expired: it cannot log in with a password", role.Name)
	}
}

// A relay opens up to neededConnections connections. As a rule, its statements take less than shortStatements, and its
// sessions are idle for less than shortIdle.
const (
	neededConnections = 7
	shortStatements   = time.Second
	shortIdle         = time.Minute
)

// judgeRoleLimits checks the settings of the role that the relay does not change.
func (j *databaseJudge) judgeRoleLimits(c *chart) {
	role := j.f.role.value
	if j.f.role.err != nil {
		return // another check reports it
	}
	if role.Connections >= 0 && role.Connections < neededConnections && !role.Superuser {
		c.warn("connections", sql("ALTER ROLE %s CONNECTION LIMIT -1", j.role()),
			"role %q may open %d connections: a relay needs up to %d", role.Name, role.Connections, neededConnections)
	}
	reset := func(name string) fix {
		return sql("ALTER ROLE %s IN DATABASE %s SET %s = 0", j.role(), quote(j.server.Database), name)
	}
	if timeout := role.timeout("statement_timeout"); timeout > 0 && timeout < shortStatements {
		c.warn("statement_timeout", reset("statement_timeout"),
			"statement_timeout is %s for role %q: the server may cancel statements of the relay when it is busy",
			timeout, role.Name)
	}
	if timeout := role.timeout("idle_session_timeout"); timeout > 0 && timeout < shortIdle {
		c.warn("idle_session_timeout", reset("idle_session_timeout"),
			"idle_session_timeout is %s for role %q: the server ends sessions of the relay, and its sweeps fail",
			timeout, role.Name)
	}
}

// A difference that people notice in displayed times. Due times use only Postgres' clock.
const wrongClock = 5 * time.Second

func (j *databaseJudge) judgeClock(c *chart) {
	fix := command("timedatectl set-ntp true").noted("here, and on the server")
	switch ahead := j.f.clock.value; {
	case j.f.clock.err != nil:
		c.unknown("clock", j.f.clock.err)
	case ahead.Abs() >= wrongClock && ahead > 0:
		c.warn("clock", fix, "the clock of Postgres is %s ahead of this machine's. "+
			"Messages are due by the clock of Postgres, so only log times and latencies are wrong", span(ahead))
	case ahead.Abs() >= wrongClock:
		c.warn("clock", fix, "the clock of Postgres is %s behind this machine's. "+
			"Messages are due by the clock of Postgres, so only log times and latencies are wrong", span(-ahead))
	default:
		c.ok("clock", "Postgres and this machine agree")
	}
}

// directly says how to connect without the pooler.
func (j *databaseJudge) directly() fix {
	if j.service.role == "supabase_admin" {
		return remark("# in --database-url (CDC_RELAY_DATABASE_URL), name the direct connection: " +
			"db.PROJECT.supabase.co:5432, not the pooler")
	}
	if j.service.role == "neon_superuser" {
		return remark("# in --database-url (CDC_RELAY_DATABASE_URL), name the host without -pooler")
	}
	return remark("# in --database-url (CDC_RELAY_DATABASE_URL), name host and port of Postgres itself, " +
		"5432 as a rule, not of the pooler")
}

func (j *databaseJudge) judgeWAL(c *chart) {
	switch level := j.setting("wal_level"); {
	case !slot.CanDecode(j.server.major(), level):
		c.wrong("wal_level", j.service.logicalWAL(), "wal_level is %s: streaming needs logical", level)
	case level != "logical":
		c.ok("wal_level", "%s, and %s now: this server raises it while a logical slot exists",
			level, j.setting("effective_wal_level"))
	default:
		c.ok("wal_level", "logical")
	}
}

// judgeRoom: slots and walsenders are limited for the whole server.
func (j *databaseJudge) judgeRoom(c *chart) {
	used, most := len(j.f.slots.value.Slots), j.number("max_replication_slots")
	ours := j.slot().Exists()
	switch {
	case j.f.slots.err != nil:
		c.unknown("max_replication_slots", j.f.slots.err)
	case used >= most && !ours:
		c.wrong("max_replication_slots",
			lines(j.service.setting("max_replication_slots", strconv.Itoa(most+10), true), j.unusedSlots()),
			"no replication slot is free: %d of %d are in use%s", used, most, j.inactiveSlots())
	case used >= most:
		c.ok("max_replication_slots", "%d of %d in use, one of them this relay's", used, most)
	default:
		c.ok("max_replication_slots", "%d of %d in use", used, most)
	}
	used, most = j.server.Walsenders, j.number("max_wal_senders")
	streaming := j.streaming()
	switch {
	case used >= most && !streaming:
		c.wrong("max_wal_senders", j.service.setting("max_wal_senders", strconv.Itoa(most+10), true),
			"no walsender is free: %d of %d are in use", used, most)
	case used >= most:
		c.warn("max_wal_senders", j.service.setting("max_wal_senders", strconv.Itoa(most+10), true),
			"all %d are in use: the relay streams, but a standby, or a relay that reconnects, finds none", most)
	default:
		c.ok("max_wal_senders", "%d of %d in use", used, most)
	}
}

// inactiveSlots names some slots that nobody uses.
func (j *databaseJudge) inactiveSlots() string {
	var names []string
	for _, s := range j.f.slots.value.Slots {
		if !s.Active() && len(names) < 5 {
			names = append(names, s.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; not active are " + strings.Join(names, ", ")
}

func (j *databaseJudge) unusedSlots() fix {
	if j.inactiveSlots() == "" {
		return nil
	}
	return remark("-- or drop one that its owner no longer needs: SELECT pg_catalog.pg_drop_replication_slot('NAME');")
}

// judgeReplication combines the role's attributes in the catalog with the result of a replication connection.
func (j *databaseJudge) judgeReplication(c *chart) {
	role := j.f.role.value
	switch {
	case j.o.Operator:
	case j.f.role.err != nil:
		c.unknown("replication", j.f.role.err)
	case !role.replicates():
		c.wrong("replication", j.service.replication(role.Name), "role %q may not replicate", role.Name)
	case j.f.replication == nil:
		c.ok("replication", "role %q may replicate, and a replication connection was opened", role.Name)
	case pgcode.Of(j.f.replication) == pgerrcode.InsufficientPrivilege:
		c.wrong("replication", j.service.replication(role.Name),
			"role %q may not replicate: %s", role.Name, j.f.replication)
	case pgcode.Of(j.f.replication) == pgerrcode.TooManyConnections:
		c.wrong("replication", remark("-- see max_wal_senders, max_connections, and the limit of the role: "+
			"SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user;"),
			"no replication connection is free: %s", j.f.replication)
	case j.f.pooler != "":
		c.wrong("replication", j.directly(), "the pooler rejects replication connections: %s", j.f.replication)
	default:
		fix := fixOf(j.f.replication)
		if slices.Equal(fix, seeLog()) {
			fix = remark("# pg_hba.conf has to let the role in for this database, " +
				"and all proxies on the way have to pass replication connections on")
		}
		c.wrong("replication", fix,
			"role %q may replicate, but no replication connection could be opened: %s", role.Name, j.f.replication)
	}
}

func (j *databaseJudge) judgeSenderTimeout(c *chart) {
	timeout, known := j.duration("wal_sender_timeout")
	fix := j.service.setting("wal_sender_timeout", "60s", false)
	switch {
	case !known:
		c.warn("wal_sender_timeout", nil, "the server does not show it")
	case timeout == 0:
		c.warn("wal_sender_timeout", fix, "off: if the machine of a relay is lost, "+
			"its slot stays taken until TCP times out; only a standby takes it sooner, after 6 s")
	case timeout > 5*time.Minute:
		c.warn("wal_sender_timeout", fix,
			"%s: after that the slot of a lost relay is free; only a standby takes it sooner, after 6 s", span(timeout))
	case timeout < 3*time.Second:
		c.warn("wal_sender_timeout", fix, "%s: a short pause of the network or of the relay ends the stream", timeout)
	case !j.f.role.value.SeesOthers && !j.o.Operator:
		c.warn("wal_sender_timeout", sql("GRANT pg_read_all_stats TO %s", j.role()).safe(),
			"%s: a standby takes the slot of a frozen or lost relay only after that, "+
				"because role %q may not see how long the relay is silent; with the GRANT, after 6 s",
			span(timeout), j.f.role.value.Name)
	default:
		c.ok("wal_sender_timeout",
			"%s: after that the slot of a lost relay is free; a standby takes it after 6 s at the latest",
			span(timeout))
	}
}

func (j *databaseJudge) setting(name string) string { return j.server.Settings[name].Value }

func (j *databaseJudge) number(name string) int {
	n, _ := strconv.Atoi(j.setting(name))
	return n
}

// duration reads a setting that is a time.
func (j *databaseJudge) duration(name string) (time.Duration, bool) {
	s, there := j.server.Settings[name]
	n, err := strconv.ParseInt(s.Value, 10, 64)
	if !there || err != nil {
		return 0, false
	}
	unit := map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "min": time.Minute}[s.Unit]
	return time.Duration(n) * unit, unit > 0
}

// bytes reads a setting that is a size; negative: none.
func (j *databaseJudge) bytes(name string) int64 {
	s := j.server.Settings[name]
	n, err := strconv.ParseInt(s.Value, 10, 64)
	unit := map[string]int64{"B": 1, "kB": 1 << 10, "8kB": 8 << 10, "MB": 1 << 20, "GB": 1 << 30}[s.Unit]
	if err != nil || unit == 0 || n < 0 {
		return -1
	}
	return n * unit
}

// size writes a number of bytes for people.
func size(bytes int64) string {
	const kilo, mega, giga = 1 << 10, 1 << 20, 1 << 30
	switch {
	case bytes >= giga:
		return fmt.Sprintf("%.1f GB", float64(bytes)/giga)
	case bytes >= mega:
		return fmt.Sprintf("%.1f MB", float64(bytes)/mega)
	case bytes >= kilo:
		return fmt.Sprintf("%.1f kB", float64(bytes)/kilo)
	}
	return fmt.Sprintf("%d bytes", bytes)
}

// span writes a duration for people, rounded.
func span(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	case d >= time.Minute:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return d.Round(time.Second).String()
}
