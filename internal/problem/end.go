package problem

import (
	"fmt"
	"strings"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// EndSession is the Fix for a transaction of a session that delays others.
func EndSession(pid int64) string {
	return fmt.Sprintf("SELECT pg_catalog.pg_terminate_backend(%d);  -- as an administrator; "+
		"its uncommitted work is lost. Or wait until its transaction ends", pid)
}

// EndPrepared is the Fix for a prepared transaction that delays others. Each statement is final, and only the
// application or transaction manager that prepared it knows which one is right.
func EndPrepared(gid string) string {
	if gid == "" {
		return "-- ask the owner of each transaction whether its work counts: " +
			"SELECT gid, owner, database, prepared FROM pg_prepared_xacts;"
	}
	name := outbox.QuoteLiteral(gid)
	return fmt.Sprintf("-- ask its owner whether its work counts: "+
		"SELECT owner, database, prepared FROM pg_prepared_xacts WHERE gid = %s; "+
		"then, as the owner: COMMIT PREPARED %[1]s, or ROLLBACK PREPARED %[1]s, which destroys its work", name)
}

// Blocker is a transaction that delays others.
type Blocker struct {
	PID     int64  // 0: a prepared transaction
	GID     string // of a prepared transaction, if it is known
	Program string // application_name
	Details string // such as "app, psql, idle in transaction, 35 s"
}

// The columns of a Blocker that holds a lock l, and the tables that have them. Every role may see locks, unlike the
// sessions of others. A prepared transaction has no process.
const (
	BlockerColumns = `coalesce(l.pid, 0) AS pid, coalesce(p.gid, '') AS gid,
  coalesce(a.application_name, '') AS program,
  pg_catalog.concat_ws(', ', coalesce(a.usename, p.owner)::text, nullif(a.application_name, ''), a.state,
    pg_catalog.round(extract(epoch FROM statement_timestamp() - coalesce(a.xact_start, p.prepared)))::text || ' s')
    AS details`
	BlockerTables = `pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_catalog.pg_prepared_xacts p ON l.pid IS NULL AND EXISTS (SELECT FROM pg_catalog.pg_locks x
  WHERE x.pid IS NULL AND x.virtualtransaction = l.virtualtransaction AND x.transactionid = p.transaction)`
	// IsRelaySQL: the transaction is one of a relay or a command, and so a short one.
	IsRelaySQL = `coalesce(a.application_name, '') LIKE 'cdc-relay%'`
	// WritersSQL returns the transactions of others that have a transaction id, in any database, the oldest first: the
	// creation of a slot waits for them. A savepoint has an id of its own.
	WritersSQL = `
SELECT ` + BlockerColumns + `, extract(epoch FROM statement_timestamp() - coalesce(a.xact_start, p.prepared)) AS age,
  pg_catalog.max(pg_catalog.age(l.transactionid)) AS xidage
FROM ` + BlockerTables + `
WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
  AND l.pid IS DISTINCT FROM pg_backend_pid() AND NOT ` + IsRelaySQL + `
GROUP BY l.pid, a.usename, a.application_name, a.state, a.xact_start, p.gid, p.owner, p.prepared
ORDER BY xidage DESC LIMIT 20`
)

func (b Blocker) String() string {
	name := fmt.Sprintf("Postgres process %d", b.PID)
	switch {
	case b.GID != "":
		name = "prepared transaction " + outbox.QuoteLiteral(b.GID)
	case b.PID == 0:
		name = "a prepared transaction"
	}
	if b.Details != "" {
		name += " (" + b.Details + ")"
	}
	return name
}

// End is the Fix for the transaction.
func (b Blocker) End() string {
	switch {
	case b.PID == 0:
		return EndPrepared(b.GID)
	case strings.HasPrefix(b.Program, "cdc-relay"):
		return "# wait until that transaction of cdc-relay ends"
	}
	return EndSession(b.PID)
}
