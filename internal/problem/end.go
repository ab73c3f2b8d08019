package problem

import (
	"fmt"

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
	Details string // such as "app, idle in transaction, 35 s"
}

func (b Blocker) String() string {
	name := fmt.Sprintf("pid %d", b.PID)
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
	if b.PID == 0 {
		return EndPrepared(b.GID)
	}
	return EndSession(b.PID)
}
