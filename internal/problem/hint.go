package problem

import (
	"errors"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
)

// Hint is the command or SQL that fixes what an error tells of, "" where that is not known.
func Hint(err error) string {
	var hinted interface{ Hint() string }
	if errors.As(err, &hinted) {
		return hinted.Hint()
	}
	if sharesConnections(err) {
		return "name host and port of Postgres itself in --database-url (CDC_RELAY_DATABASE_URL), not of a pooler such as PgBouncer"
	}
	return ""
}

// sharesConnections: a pooler in transaction mode loses prepared statements or finds those of others, which Postgres
// itself never does; and it rejects parameters at the start-up that Postgres takes.
func sharesConnections(err error) bool {
	return pgcode.Is(err, pgcode.DuplicateStatement, pgcode.InvalidStatement) ||
		pgcode.Is(err, pgcode.ProtocolViolation) && strings.Contains(err.Error(), "unsupported startup parameter")
}
