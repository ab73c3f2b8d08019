package problem

import (
	"errors"
	"strings"

	"github.com/jackc/pgerrcode"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
)

// Hint returns the command or SQL that fixes an error, or "" if none is known.
func Hint(err error) string {
	var hinted interface{ Hint() string }
	if errors.As(err, &hinted) {
		return hinted.Hint()
	}
	if pgcode.Is(err, pgerrcode.ReadOnlySQLTransaction) { // all sessions of the program are read-write elsewhere
		return Standby{}.Hint()
	}
	if sharesConnections(err) {
		return "# use host and port of Postgres itself in --database-url (CDC_RELAY_DATABASE_URL), " +
			"not of a pooler such as PgBouncer"
	}
	return ""
}

// Standby is the error of a server in recovery. It is no Problem: the server may be promoted.
type Standby struct{}

func (Standby) Error() string {
	return "this server is a standby: it accepts no writes, and knows no relay"
}

// Hint says which server to name.
func (Standby) Hint() string {
	return "# use the primary in --database-url (CDC_RELAY_DATABASE_URL), or all servers: " +
		"postgres://user@first,second/database?target_session_attrs=read-write"
}

// sharesConnections detects a pooler in transaction mode. It loses prepared statements or mixes up those of several
// clients, and it rejects startup parameters that Postgres accepts.
func sharesConnections(err error) bool {
	return pgcode.Is(err, pgerrcode.DuplicatePreparedStatement, pgerrcode.InvalidSQLStatementName) ||
		pgcode.Is(err, pgerrcode.ProtocolViolation) && strings.Contains(err.Error(), "unsupported startup parameter")
}
