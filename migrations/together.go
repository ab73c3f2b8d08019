package migrations

import (
	"context"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// localPath is for one transaction: nobody else's function or operator runs in place of one of Postgres.
const localPath = "SET LOCAL search_path = pg_catalog, pg_temp;\n"

// localTimeout limits how long a transaction waits for a lock.
const localTimeout = "SET LOCAL lock_timeout = '10s';\n"

// noJIT is for statements that are long and read little: to compile them would take a second.
const noJIT = "SET LOCAL jit = off;\n"

// beginner is a connection, or a transaction, which then begins a savepoint.
type beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// inPath runs a transaction with localPath and localTimeout.
func inPath(ctx context.Context, db beginner, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, localPath+localTimeout+noJIT); err != nil {
			return err
		}
		return do(tx)
	})
}

// Together runs a transaction that creates or grants objects, and runs it again if another session did the same at
// once: do creates only what is missing. There is no lock that another role could hold. If do waits too long for an
// object of the outbox, the error says for whom.
func Together(ctx context.Context, db beginner, table outbox.Table, do func(pgx.Tx) error) (err error) {
	const sessions = 20 // that do the same; one of them finishes each time
	for range sessions {
		if err = inPath(ctx, db, do); !outrun(err) {
			break
		}
	}
	return Blocked(ctx, db, err, table, table.DeadLetter(), VersionTable(table), table.Published(), RelayTable(table))
}

// outrun reports whether another session created or changed the same object at once.
func outrun(err error) bool {
	return pgcode.Is(err, pgerrcode.DuplicateTable, pgerrcode.DuplicateObject, pgerrcode.DuplicateSchema,
		pgerrcode.DuplicateFunction, pgerrcode.UniqueViolation, pgerrcode.DeadlockDetected) ||
		pgcode.Is(err, pgerrcode.InternalError) && strings.Contains(err.Error(), "tuple concurrently")
}

// Blocked adds the session that has locked one of the tables to the error of a statement that waited for a lock. It
// also finds a session that has created a table and not committed.
func Blocked(ctx context.Context, db beginner, err error, tables ...outbox.Table) error {
	if !pgcode.Is(err, pgerrcode.LockNotAvailable) {
		return err
	}
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = t.SQL()
	}
	var object string
	var by problem.Blocker
	failed := inPath(ctx, db, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
SELECT coalesce((SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c
                 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = l.relation), 'a new table'),
       `+problem.BlockerColumns+`
FROM `+problem.BlockerTables+`
WHERE l.granted AND l.locktype = 'relation' AND l.pid IS DISTINCT FROM pg_backend_pid() AND l.mode <> 'AccessShareLock'
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
  AND (l.relation = ANY (array(SELECT pg_catalog.to_regclass(t)::oid FROM pg_catalog.unnest($1::text[]) t))
       OR NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = l.relation))
ORDER BY (NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = l.relation)), l.mode <> 'AccessExclusiveLock',
  `+problem.IsRelaySQL+`,
  coalesce(a.xact_start, p.prepared) LIMIT 1`,
			names).Scan(&object, &by.PID, &by.GID, &by.Program, &by.Details)
	})
	if failed != nil {
		return err
	}
	return problem.Of(err, by.End(), "%s is locked by %s", object, by)
}
