package problem

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Grant returns the GRANT for a role that may not read an object of the system catalog, which by default PUBLIC may
// read; "" for other errors. The message is in the server's language, so only the name of the object is known.
func Grant(err error, role string) string {
	var answer *pgconn.PgError
	if !errors.As(err, &answer) || answer.Code != pgerrcode.InsufficientPrivilege ||
		answer.Routine != "aclcheck_error" {
		return ""
	}
	name, to := regexp.MustCompile(`\b(?:pg|has)_[a-z0-9_]+`).FindString(answer.Message), outbox.Identifier(role)
	switch name {
	case "":
		return ""
	case "pg_catalog":
		return fmt.Sprintf("GRANT USAGE ON SCHEMA pg_catalog TO %s;", to)
	}
	return fmt.Sprintf("DO $do$ BEGIN EXECUTE (SELECT string_agg('GRANT ' || o || %s, ';') FROM ("+
		"SELECT 'SELECT ON ' || oid::regclass FROM pg_class "+
		"WHERE relname = '%[2]s' AND relnamespace = 'pg_catalog'::regnamespace UNION ALL "+
		"SELECT 'EXECUTE ON FUNCTION ' || oid::regprocedure FROM pg_proc "+
		"WHERE proname = '%[2]s' AND pronamespace = 'pg_catalog'::regnamespace) x(o)); END $do$;",
		outbox.QuoteLiteral(" TO "+to), name)
}
