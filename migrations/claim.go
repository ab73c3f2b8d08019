package migrations

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Function is a function of an outbox: its name and the types of its parameters.
type Function struct {
	Name       outbox.Table
	Parameters string
}

// SQL returns the signature as in SQL.
func (f Function) SQL() string { return f.Name.SQL() + "(" + f.Parameters + ")" }

// CREATE OR REPLACE keeps owner and grants of an existing function. One of another role would stay open to whom that
// role let in, and run with the rights of the table's owner. So it is dropped first. Functions of the same name with
// other parameters could run in place of ours.
const beforeSQL = `DO $claim$
DECLARE
    own oid := (SELECT relowner FROM pg_class WHERE oid = {outbox}::regclass);
    f   record;
BEGIN
    FOR f IN
        SELECT p.oid::regprocedure AS name, pg_get_userbyid(p.proowner) AS owner,
               p.oid = to_regprocedure(w.signature) IS TRUE AS same
        FROM (VALUES {functions}) w(schema, name, signature) JOIN pg_namespace n ON n.nspname = w.schema
        JOIN pg_proc p ON p.pronamespace = n.oid AND p.proname = w.name
        WHERE p.proowner <> own AND (p.oid = to_regprocedure(w.signature) IS TRUE
                                     OR NOT (SELECT rolsuper FROM pg_roles r WHERE r.oid = p.proowner))
    LOOP
        IF NOT f.same THEN
            RAISE WARNING 'function % belongs to role %, and a call could run it in place of the outbox''s own',
              f.name, f.owner
                USING HINT = format('DROP FUNCTION %s;', f.name);
            CONTINUE;
        END IF;
        BEGIN
            EXECUTE format('DROP FUNCTION %s', f.name);
        EXCEPTION WHEN dependent_objects_still_exist THEN
            NULL; -- such as a trigger: the function is replaced, and loses its grants below
        WHEN insufficient_privilege THEN
            RAISE EXCEPTION 'function % belongs to role %, not to %, the owner of the table', f.name, f.owner,
              own::regrole
                USING ERRCODE = 'insufficient_privilege', HINT = format('DROP FUNCTION %s;  -- as a superuser', f.name);
        END;
    END LOOP;
    PERFORM set_config('cdc_relay.kept_functions', coalesce((
        SELECT string_agg(p.oid::text, ' ') FROM (VALUES {functions}) w(schema, name, signature)
        JOIN pg_proc p ON p.oid = to_regprocedure(w.signature) AND p.proowner = own), ''), true);
END $claim$;
`

// A new function can have grants as well, from ALTER DEFAULT PRIVILEGES.
const afterSQL = `DO $claim$
DECLARE
    own oid := (SELECT relowner FROM pg_class WHERE oid = {outbox}::regclass);
    f   record;
BEGIN
    FOR f IN
        SELECT p.oid::regprocedure AS name,
               p.oid::text = ANY (string_to_array(current_setting('cdc_relay.kept_functions'), ' ')) AS kept
        FROM (VALUES {functions}) w(schema, name, signature) JOIN pg_proc p ON p.oid = to_regprocedure(w.signature)
    LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO %s', f.name, own::regrole);
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f.name);
        CONTINUE WHEN f.kept;
        EXECUTE coalesce((
            SELECT string_agg(format('REVOKE ALL ON FUNCTION %s FROM %s CASCADE', f.name, x.grantee::regrole), ';')
            FROM pg_proc p, aclexplode(p.proacl) x WHERE p.oid = f.name AND x.grantee NOT IN (0, own)), 'SELECT');
    END LOOP;
END $claim$;
`

// ClaimSQL returns SQL to run before and after the functions are created, in one transaction: afterwards they belong to
// the owner of the table. New functions have no grants. Grants of a function that belonged to the owner before stay.
func ClaimSQL(table outbox.Table, functions ...Function) (before, after string) {
	rows := make([]string, len(functions))
	for i, f := range functions {
		rows[i] = fmt.Sprintf("(%s, %s, %s)",
			QuoteLiteral(f.Name.Schema), QuoteLiteral(f.Name.Name), QuoteLiteral(f.SQL()))
	}
	fill := strings.NewReplacer("{outbox}", QuoteLiteral(table.SQL()), "{functions}", strings.Join(rows, ", "))
	return fill.Replace(beforeSQL), fill.Replace(afterSQL)
}

// Foreign is a function with the name of one of the outbox, of a role that is neither the owner of the table nor a
// superuser.
type Foreign struct {
	Function, Owner string
	// Same: it has the same parameters, so MakeFunctions drops it and creates its own, without these grants. One with
	// others stays, and a call could run it.
	Same bool
	// Grantees may call it.
	Grantees []string
}

// ForeignFunctions returns the functions of other roles, by name.
func ForeignFunctions(ctx context.Context, conn *pgx.Conn, table outbox.Table) ([]Foreign, error) {
	var names []string
	for _, f := range Functions(table) {
		names = append(names, f.Name.Name)
	}
	rows, _ := conn.Query(ctx, `
SELECT p.oid::regprocedure::text, pg_catalog.pg_get_userbyid(p.proowner)::text,
       p.oid = ANY (array(SELECT pg_catalog.to_regprocedure(f)::oid FROM pg_catalog.unnest($1::text[]) f)) IS TRUE,
       array(SELECT x.grantee::regrole::text FROM pg_catalog.aclexplode(p.proacl) x
             WHERE x.grantee <> '0' AND x.grantee <> p.proowner ORDER BY 1)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_proc p ON p.pronamespace = c.relnamespace
  AND p.proname = ANY ($3::name[]) AND p.proowner <> c.relowner
JOIN pg_catalog.pg_roles r ON r.oid = p.proowner AND NOT r.rolsuper
WHERE c.oid = pg_catalog.to_regclass($2)::oid ORDER BY 1`, signatures(table), table.SQL(), names)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Foreign])
	if err != nil {
		return nil, fmt.Errorf("look for functions of other roles: %w", err)
	}
	return found, nil
}
