package doctor

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/slot"
)

const serverSQL = `
SELECT jsonb_build_object('VersionNumber', current_setting('server_version_num')::int,
  'version', current_setting('server_version'), 'InRecovery', pg_is_in_recovery(), 'database', current_database(),
  'BackendPID', pg_backend_pid(), 'walsenders', (SELECT count(*) FROM pg_stat_replication),
  'roles', (SELECT jsonb_agg(rolname) FROM pg_roles WHERE rolname = ANY ($2::text[])),
  'settings', (SELECT jsonb_object_agg(name, jsonb_build_object('value', setting, 'unit', unit))
               FROM pg_settings WHERE name = ANY ($1::text[])))`

// settingNames are the server settings that check reads.
func settingNames() []string {
	return []string{
		"wal_level", "effective_wal_level", "max_replication_slots", "max_wal_senders", "wal_sender_timeout",
		"max_slot_wal_keep_size", "max_wal_size", "idle_replication_slot_timeout", "autovacuum", "track_counts",
	}
}

type serverFacts struct {
	VersionNumber     int
	Version, Database string
	InRecovery        bool
	BackendPID        int64
	Roles             []string // the existing roles of managed services
	Settings          map[string]setting
	Walsenders        int // in use
}

func (s serverFacts) major() int { return s.VersionNumber / 10000 }

// setting is a row of pg_settings.
type setting struct{ Value, Unit string }

// newestMajor is the newest version that cdc-relay knows.
const newestMajor = 19

func (j *databaseJudge) judgeVersion(c chart) {
	where := fmt.Sprintf("connected to %s, database %q, role %q", j.f.address, j.server.Database, j.role.Name)
	if !j.service.Own() {
		where += ", on " + j.service.name
	}
	c.ok("reachable", "%s", where)
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
		c.wrong("primary", hintFix(problem.Standby{}.Hint()), "%s", problem.Standby{})
	} else {
		c.ok("primary", "accepts writes")
	}
}

// judgeCommits: without the standby, published rows are not deleted, and those of applications stay invisible.
func (j *databaseJudge) judgeCommits(c chart) {
	if waits := j.f.transactions.value; waits.Commits > 0 {
		c.wrong("commits", lines(remark("-- start the standby; or, until it is back:"),
			j.service.setting("synchronous_standby_names", "", false)),
			"the COMMIT of %d sessions waits for a synchronous standby (synchronous_standby_names: %s)",
			waits.Commits, waits.Standbys)
	}
}

func (j *databaseJudge) judgeWAL(c chart) {
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
func (j *databaseJudge) judgeRoom(c chart) {
	used, most := len(j.slots), j.number("max_replication_slots")
	switch failed := c.unknown("max_replication_slots", j.f.slots.err); {
	case failed:
	case used >= most && !j.slot.Exists():
		fix, inactive := j.service.setting("max_replication_slots", strconv.Itoa(most+10), true), j.inactiveSlots()
		if inactive != "" {
			fix = lines(fix, remark("-- or drop one that its owner no longer needs: "+
				"SELECT pg_catalog.pg_drop_replication_slot('NAME');"))
		}
		c.wrong("max_replication_slots", fix,
			"no replication slot is free: %d of %d are in use%s", used, most, inactive)
	case used >= most:
		c.ok("max_replication_slots", "%d of %d in use, one of them this relay's", used, most)
	default:
		c.ok("max_replication_slots", "%d of %d in use", used, most)
	}
	used, most = j.server.Walsenders, j.number("max_wal_senders")
	more := j.service.setting("max_wal_senders", strconv.Itoa(most+10), true)
	switch {
	case used < most:
		c.ok("max_wal_senders", "%d of %d in use", used, most)
	case j.slot.Relayed(j.o.Table):
		c.warn("max_wal_senders", more,
			"all %d are in use: the relay streams, but a standby, or a relay that reconnects, finds none", most)
	default:
		c.wrong("max_wal_senders", more, "no walsender is free: %d of %d are in use", used, most)
	}
}

// inactiveSlots names some slots that nobody uses.
func (j *databaseJudge) inactiveSlots() string {
	var names []string
	for _, s := range j.slots {
		if !s.Active() && len(names) < 5 {
			names = append(names, s.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; not active are " + strings.Join(names, ", ")
}

func (j *databaseJudge) judgeSenderTimeout(c chart) {
	timeout, known := j.duration("wal_sender_timeout")
	switch {
	case !known:
		c.warn("wal_sender_timeout", nil, "the server does not show it")
	case timeout > 0 && timeout < 3*time.Second:
		c.warn("wal_sender_timeout", j.service.setting("wal_sender_timeout", "60s", false),
			"%s: a short pause of the network or of the relay ends the stream", timeout)
	default:
		c.ok("wal_sender_timeout", "%s", j.setting("wal_sender_timeout")+j.server.Settings["wal_sender_timeout"].Unit)
	}
}

func (j *databaseJudge) setting(name string) string { return j.server.Settings[name].Value }

func (j *databaseJudge) number(name string) int {
	n, _ := strconv.Atoi(j.setting(name))
	return n
}

// duration reads a setting that is a time.
func (j *databaseJudge) duration(name string) (d time.Duration, known bool) {
	s := j.server.Settings[name]
	n, err := strconv.ParseInt(s.Value, 10, 64)
	unit := map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "min": time.Minute}[s.Unit]
	return time.Duration(n) * unit, err == nil && unit > 0
}

// bytes reads a setting that is a size; negative: none.
func (j *databaseJudge) bytes(name string) int64 {
	s := j.server.Settings[name]
	n, err := strconv.ParseInt(s.Value, 10, 64)
	unit := map[string]int64{"B": 1, "kB": 1 << 10, "8kB": 8 << 10, "MB": 1 << 20, "GB": 1 << 30}[s.Unit]
	if err != nil || unit == 0 {
		return -1
	}
	return max(n*unit, -1)
}
