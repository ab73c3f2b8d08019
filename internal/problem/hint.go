package problem

import (
	"errors"
	"strings"
)

// Hint is the command or SQL that mends what an error tells of, "" where that is not known.
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
// itself never does; and it refuses parameters at the start-up that Postgres takes.
func sharesConnections(err error) bool {
	var state interface {
		error
		SQLState() string
	}
	if !errors.As(err, &state) {
		return false
	}
	switch state.SQLState() {
	case "42P05", "26000": // duplicate_prepared_statement, invalid_sql_statement_name
		return true
	case "08P01": // protocol_violation
		return strings.Contains(state.Error(), "unsupported startup parameter")
	}
	return false
}
