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
	if sharesConnections(err) {
		return "# use host and port of Postgres itself in --database-url (CDC_RELAY_DATABASE_URL), " +
			"not of a pooler such as PgBouncer"
	}
	return ""
}

// sharesConnections detects a pooler in transaction mode. It loses prepared statements or mixes up those of several
// clients, and it rejects startup parameters that Postgres accepts.
func sharesConnections(err error) bool {
	return pgcode.Is(err, pgerrcode.DuplicatePreparedStatement, pgerrcode.InvalidSQLStatementName) ||
		pgcode.Is(err, pgerrcode.ProtocolViolation) && strings.Contains(err.Error(), "unsupported startup parameter")
}
