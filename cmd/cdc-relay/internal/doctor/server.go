package doctor

import (
	"fmt"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

const serverSQL = `
SELECT jsonb_build_object('VersionNumber', current_setting('server_version_num')::int,
  'version', current_setting('server_version'), 'InRecovery', pg_is_in_recovery(), 'database', current_database(),
  'BackendPID', pg_backend_pid(), 'MaxWAL', (SELECT setting::int FROM pg_settings WHERE name = 'max_wal_size'),
  'roles', (SELECT jsonb_agg(rolname) FROM pg_roles WHERE rolname = ANY ($1::text[])))`

type serverFacts struct {
	VersionNumber     int
	Version, Database string
	InRecovery        bool
	BackendPID        int64
	MaxWAL            int64    // max_wal_size in MB
	Roles             []string // the existing roles of managed services
}

func (s serverFacts) major() int { return s.VersionNumber / 10000 }

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
