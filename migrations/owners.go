package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// A name is no identity: a role with CREATE on the schema can take the names of an outbox first. Its triggers, rules or
// views would then run with the rights of who sets up, updates or relays. So an object with one of these names is ours
// only if its kind and its owner are right.

// strangersSQL finds the worst object with a name of an outbox that is not ours. Trusted are the role of the session,
// the owner of the database, superusers and a named role. If one of them has published the outbox, its owner is trusted
// as well; a session that is no superuser accepts any publication, because creating one needs CREATE on the database.
// Only identity counts, because a membership proves nothing: a superuser is a member of every role, and a role can make
// others its members. A session that has nothing to lend, such as a relay that polls, may use the tables of any role.
const strangersSQL = `
WITH me AS (
  SELECT pg_catalog.bool_or(r.rolsuper AND r.rolname = current_user) AS super,
         pg_catalog.bool_or(r.rolsuper OR r.rolreplication
                            OR EXISTS (SELECT FROM pg_catalog.pg_auth_members m WHERE m.member = r.oid))
           OR pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')
           OR coalesce((SELECT pg_catalog.has_schema_privilege(n.oid, 'CREATE') FROM pg_catalog.pg_namespace n
                        WHERE n.nspname = {schema}), false) AS lends
  FROM pg_catalog.pg_roles r WHERE r.rolname IN (current_user, session_user)),
ours AS (
  SELECT o.*, n.nspname FROM (` + ObjectsSQL + `) o JOIN pg_catalog.pg_namespace n ON n.oid = o.namespace
  WHERE n.nspname = {schema} AND (o.name IN ({tables}) OR o.name = {sequence}
    OR pg_catalog.left(o.name, pg_catalog.length({partition})) = {partition}
       AND pg_catalog.substr(o.name, pg_catalog.length({partition}) + 1) ~ '^[0-9]*$')
  UNION SELECT o.*, n.nspname FROM (` + ObjectsSQL + `) o JOIN pg_catalog.pg_namespace n ON n.oid = o.namespace
  JOIN pg_catalog.pg_inherits i ON i.inhrelid = o.relation
  WHERE i.inhparent IN (SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
                        WHERE s.nspname = {schema} AND c.relname IN ({tables}))),
base AS (
  SELECT r.oid FROM pg_catalog.pg_roles r
  WHERE r.rolsuper OR r.rolname IN (current_user, 'pg_database_owner', {owner}) OR r.oid = (
    SELECT d.datdba FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())),
trusted AS (
  SELECT b.oid FROM base b
  UNION SELECT c.relowner FROM me, pg_catalog.pg_class c JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
  JOIN pg_catalog.pg_publication_rel t ON t.prrelid = c.oid JOIN pg_catalog.pg_publication p ON p.oid = t.prpubid
  WHERE s.nspname = {schema} AND c.relname = {outbox}
    AND (NOT me.super OR p.pubowner IN (SELECT b.oid FROM base b)))
SELECT f.fault, f.kind, f.nspname::text AS schema, f.name::text AS name,
       pg_catalog.pg_get_userbyid(f.owner)::text AS owner, f.code, current_user::text AS self
FROM me, (
  SELECT 1 AS nth, 'owner' AS fault, o.kind, o.nspname, o.name, o.owner, '' AS code FROM ours o
  UNION ALL SELECT 2, 'trigger', o.kind, o.nspname, o.name, p.proowner, t.tgname FROM ours o
  JOIN pg_catalog.pg_trigger t ON t.tgrelid = o.relation AND NOT t.tgisinternal AND t.tgenabled <> 'D'
  JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid AND p.proowner <> o.owner
  UNION ALL SELECT 3, 'kind', o.kind, o.nspname, o.name, o.owner, '' FROM ours o
  WHERE o.kind <> 'TABLE' AND o.name IN ({tables})) f
WHERE f.fault = 'kind' OR me.lends AND f.owner NOT IN (SELECT t.oid FROM trusted t)
ORDER BY f.kind IN ('VIEW', 'MATERIALIZED VIEW', 'FOREIGN TABLE') DESC, f.nth, f.name LIMIT 1`

// strangers returns strangersSQL for an outbox. Owner is the role that the user has named, or "".
func strangers(table outbox.Table, owner []string) string {
	var tables []string
	for _, t := range []outbox.Table{
		table, table.DeadLetter(), VersionTable(table), table.Published(), lastPartition(table),
	} {
		tables = append(tables, QuoteLiteral(t.Name))
	}
	named := "NULL"
	if len(owner) > 0 && owner[0] != "" {
		named = QuoteLiteral(owner[0])
	}
	return strings.NewReplacer("{schema}", QuoteLiteral(table.Schema), "{outbox}", QuoteLiteral(table.Name),
		"{tables}", strings.Join(tables, ", "), "{partition}", QuoteLiteral(lastPartition(table).Name),
		"{sequence}", QuoteLiteral(UsualSequence(table).Name), "{owner}", named).Replace(strangersSQL)
}

// ErrOwner says that a role that is not trusted owns an object of the outbox, or the function of a trigger on it.
var ErrOwner = errors.New("it is neither that role, nor the owner of the database, nor a superuser")

// stranger is a row of strangersSQL.
type stranger struct {
	Fault, Kind, Schema, Name string
	// Owner is that of the object, or of the function of the trigger Code.
	Owner, Code, Self string
}

func (s stranger) problem() *problem.Problem {
	object, role := outbox.Table{Schema: s.Schema, Name: s.Name}, outbox.Identifier(s.Owner)
	kind := strings.ToLower(s.Kind)
	away := fmt.Sprintf("ALTER %s %s RENAME TO %s", s.Kind, object.Printed(),
		outbox.QuoteIdentifier(s.Name+"_"+strings.ReplaceAll(kind, " ", "_")))
	switch s.Fault {
	case "kind":
		return problem.New(away, "%s is %s, and has to be a table", object, WithArticle(s.Kind))
	case "trigger":
		return &problem.Problem{
			What: fmt.Sprintf("trigger %s of %s runs a function of role %s, "+
				"which is not trusted to run code as role %s",
				outbox.Identifier(s.Code), object, role, outbox.Identifier(s.Self)),
			Fix: fmt.Sprintf("-- if that role may do so, add --owner %s; else: DROP TRIGGER %s ON %s;",
				problem.ShellWord(s.Owner), outbox.QuoteIdentifier(s.Code), object.Printed()),
			Err: ErrOwner,
		}
	}
	return &problem.Problem{
		What: fmt.Sprintf("%s %s belongs to role %s, which is not trusted to run code as role %s",
			kind, object, role, outbox.Identifier(s.Self)),
		Fix: fmt.Sprintf("-- if that role is to own the outbox, add --owner %s, or connect as that role; else: %s;",
			problem.ShellWord(s.Owner), away),
		Err: ErrOwner,
	}
}

// CheckOwners returns a *problem.Problem if an object with a name of the outbox is not ours. Owner names a role that
// may own it, besides those that always may. It reads only catalogs.
func CheckOwners(ctx context.Context, db beginner, table outbox.Table, owner ...string) error {
	return inPath(ctx, db, func(tx pgx.Tx) error { return checkOwners(ctx, tx, table, owner) })
}

func checkOwners(ctx context.Context, tx pgx.Tx, table outbox.Table, owner []string) error {
	found, err := findStranger(ctx, tx, table, owner)
	if err != nil || found == (stranger{}) {
		return err
	}
	return found.problem()
}

// CheckTables is CheckOwners for a person who reads: a SELECT runs the code of a view, and none of a table.
func CheckTables(ctx context.Context, db beginner, table outbox.Table) error {
	return inPath(ctx, db, func(tx pgx.Tx) error {
		found, err := findStranger(ctx, tx, table, nil)
		if err == nil && (strings.HasSuffix(found.Kind, "VIEW") || found.Kind == "FOREIGN TABLE") {
			return found.problem()
		}
		return err
	})
}

// findStranger returns the worst one; an empty one: there is none.
func findStranger(ctx context.Context, tx pgx.Tx, table outbox.Table, owner []string) (stranger, error) {
	rows, _ := tx.Query(ctx, strangers(table, owner))
	found, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[stranger])
	if errors.Is(err, pgx.ErrNoRows) {
		return stranger{}, nil
	}
	if err != nil {
		return stranger{}, fmt.Errorf("look for the owners of %s: %w", table, err)
	}
	return found, nil
}

// OwnersSQL does the same in a script. It must run after the script has locked the tables that it reads.
func OwnersSQL(table outbox.Table, owner ...string) string {
	return `DO $owners$
DECLARE
    stranger record;
    what     text;
BEGIN
    FOR stranger IN` + strangers(table, owner) + `
    LOOP
        what := format('%s %I.%I', lower(stranger.kind), stranger.schema, stranger.name);
        IF stranger.fault = 'kind' THEN
            RAISE EXCEPTION '% has to be a table', what USING ERRCODE = 'wrong_object_type', HINT = 'Rename it.';
        ELSIF stranger.fault = 'trigger' THEN
            what := format('the function of trigger %I of %s', stranger.code, what);
        END IF;
        RAISE EXCEPTION '% belongs to role %, which is not trusted to run code as role %', what,
            quote_ident(stranger.owner), quote_ident(stranger.self) USING ERRCODE = 'insufficient_privilege',
            HINT = format('If that role is to own the outbox, print the script with --owner %I. Else rename it.',
                          stranger.owner);
    END LOOP;
END $owners$;
`
}
