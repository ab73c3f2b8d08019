package problem

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// denied matches what Postgres says of an object of its catalog: by default, PUBLIC may read it.
var denied = regexp.MustCompile(`^permission denied for (view|table|function|schema) ((?:pg|has)_[a-z0-9_]+)$`)

// Grant returns the GRANT for a role that may not read an object of the system catalog, or "" for other errors.
func Grant(err error, role string) string {
	var answer *pgconn.PgError
	if !errors.As(err, &answer) || answer.Code != pgerrcode.InsufficientPrivilege {
		return ""
	}
	match := denied.FindStringSubmatch(answer.Message)
	if match == nil {
		return ""
	}
	kind, name, to := match[1], match[2], outbox.Identifier(role)
	switch {
	case kind == "schema":
		return fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;", name, to)
	case kind != "function":
		return fmt.Sprintf("GRANT SELECT ON pg_catalog.%s TO %s;", name, to)
	case isOverloaded(name):
		return fmt.Sprintf("DO $do$ BEGIN EXECUTE (SELECT string_agg("+
			"'GRANT EXECUTE ON FUNCTION ' || oid::regprocedure || %s, ';') "+
			"FROM pg_proc WHERE proname = '%s'); END $do$;", outbox.QuoteLiteral(" TO "+to), name)
	}
	return fmt.Sprintf("GRANT EXECUTE ON FUNCTION pg_catalog.%s TO %s;", name, to)
}

// isOverloaded reports whether GRANT needs the arguments of a function of the catalog that this program calls.
func isOverloaded(name string) bool {
	return strings.HasPrefix(name, "has_") || strings.HasPrefix(name, "pg_advisory_") ||
		strings.HasPrefix(name, "pg_try_advisory_") || slices.Contains([]string{
		"pg_has_role", "pg_get_expr", "pg_get_constraintdef", "pg_relation_size", "pg_size_pretty",
		"pg_logical_emit_message", "pg_copy_logical_replication_slot",
	}, name)
}
