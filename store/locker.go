package store

import (
	"context"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

const lockerSQL = `
SELECT ` + problem.BlockerColumns + `
FROM ` + problem.BlockerTables + `
JOIN {outbox} r ON l.locktype = 'transactionid' AND l.transactionid = r.xmax AND l.mode = 'ExclusiveLock' AND l.granted
WHERE r.id = $1 LIMIT 1`

const commitsSQL = `
SELECT count(*), pg_catalog.current_setting('synchronous_standby_names')
FROM pg_catalog.pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()`

// CommitWaits returns the problem that the COMMIT of a session in this database waits for a synchronous standby; nil:
// the role sees none.
func (s *Store) CommitWaits(ctx context.Context) error {
	var sessions int
	var standbys string
	err := s.ask(ctx, "count the commits that wait", commitsSQL, nil, &sessions, &standbys)
	if err != nil || sessions == 0 {
		return nil
	}
	return problem.New(
		"# start the standby; or ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf();",
		"the COMMIT of %d sessions waits for a synchronous standby, of %s", sessions, outbox.QuoteLiteral(standbys))
}

// Locker returns the session that has locked a row, and how to end its transaction. It reads the row's xmax,
// because pg_blocking_pids needs a session that waits. It cannot name sessions that share a lock: they have no single
// xmax.
func (s *Store) Locker(ctx context.Context, id int64) *problem.Problem {
	var by problem.Blocker
	err := s.ask(ctx, "find the session", s.sql.locker, []any{id}, &by.PID, &by.GID, &by.Program, &by.Details)
	if err != nil { // it has ended, or several sessions share the lock
		return problem.New("SELECT pid, usename, application_name, xact_start FROM pg_stat_activity "+
			"WHERE xact_start IS NOT NULL;  -- one of them locks it", "row %d is locked", id)
	}
	return problem.New(by.End(), "row %d is locked by %s", id, by)
}
