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

// strangersSQL finds the worst object that is not ours, or whose code runs as the user of ours. The catalog of
// dependencies knows what hangs on our tables: triggers, rules, policies, constraints, defaults, indexes, types, and
// tables that refer to ours, with what hangs on those. It also knows what each of them uses, up to a function: what
// that does is its owner's affair. Event triggers hang on the database. The owner of each must be trusted.
//
// Trusted are the role of the session, the owner of the database, superusers and a named role. If one of them has
// published the outbox, its owner is trusted as well; a session that is no superuser accepts any publication, because
// creating one needs CREATE on the database. A session that has nothing to lend but the tables, such as a relay that
// polls, trusts their owner. Only identity counts, because a membership proves nothing: a superuser is a member of
// every role, and a role can make others its members.
//
// From an adopted table, the owner of the outbox deletes a row for every INSERT. So nobody else may be able to hang
// code on it, either.
const strangersSQL = `
WITH RECURSIVE me AS (
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
sources AS (
  SELECT c.oid, c.relname, n.nspname, c.relacl FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE c.oid = pg_catalog.to_regclass({source})::oid
    OR c.oid IN (SELECT t.relid::oid FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass({source})) t)),
base AS (
  SELECT r.oid FROM pg_catalog.pg_roles r
  WHERE r.rolsuper OR r.rolname IN (current_user, 'pg_database_owner', {owner}) OR r.oid = (
    SELECT d.datdba FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())),
trusted AS (
  SELECT b.oid FROM base b
  UNION SELECT c.relowner FROM me, pg_catalog.pg_class c JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
  WHERE s.nspname = {schema} AND c.relname = {outbox} AND (NOT me.lends OR EXISTS (
    SELECT FROM pg_catalog.pg_publication_rel t JOIN pg_catalog.pg_publication p ON p.oid = t.prpubid
    WHERE t.prrelid = c.oid AND (NOT me.super OR p.pubowner IN (SELECT b.oid FROM base b))))),
hangs AS (
  SELECT o.class, o.object, o.class AS via, o.object AS part FROM (
    SELECT 'pg_catalog.pg_class'::regclass::oid AS class, o.relation AS object FROM ours o WHERE o.relation <> '0'
    UNION SELECT 'pg_catalog.pg_class'::regclass::oid, s.oid FROM sources s
    UNION SELECT 'pg_catalog.pg_event_trigger'::regclass::oid, e.oid FROM pg_catalog.pg_event_trigger e
    WHERE e.evtenabled <> 'D') o
  UNION SELECT d.class, d.object, CASE WHEN d.hangs THEN d.class ELSE h.via END,
               CASE WHEN d.hangs THEN d.object ELSE h.part END
  FROM hangs h, LATERAL (
    SELECT d.classid AS class, d.objid AS object, h.class = 'pg_catalog.pg_class'::regclass::oid AS hangs
    FROM pg_catalog.pg_depend d WHERE d.refclassid = h.class AND d.refobjid = h.object
      AND h.class IN ('pg_catalog.pg_class'::regclass::oid, 'pg_catalog.pg_type'::regclass::oid)
      AND (d.deptype <> 'n' OR d.classid = 'pg_catalog.pg_constraint'::regclass::oid)
    UNION ALL SELECT d.refclassid, d.refobjid, false FROM pg_catalog.pg_depend d
    WHERE d.classid = h.class AND d.objid = h.object AND h.class <> 'pg_catalog.pg_proc'::regclass::oid
      AND (d.refclassid <> 'pg_catalog.pg_class'::regclass::oid -- a foreign key also depends on the table that it reads
           OR d.deptype = CASE h.class WHEN 'pg_catalog.pg_constraint'::regclass::oid THEN 'a' ELSE 'n' END)) d
  WHERE d.class = ANY ('{pg_catalog.pg_class,pg_catalog.pg_trigger,pg_catalog.pg_rewrite,pg_catalog.pg_policy,
      pg_catalog.pg_constraint,pg_catalog.pg_attrdef,pg_catalog.pg_type,pg_catalog.pg_operator,pg_catalog.pg_opclass,
      pg_catalog.pg_proc}'::regclass[]::oid[])
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.oid = d.object AND t.tgenabled = 'D'
                    AND d.class = 'pg_catalog.pg_trigger'::regclass::oid)
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_rewrite w WHERE w.oid = d.object AND w.ev_enabled = 'D'
                    AND d.class = 'pg_catalog.pg_rewrite'::regclass::oid)),
found AS (
  SELECT 1 AS nth, 'owner' AS fault, o.kind, o.nspname::text AS schema, o.name::text, o.owner, NULL::oid AS via,
         NULL::oid AS part FROM ours o
  UNION ALL SELECT 2, 'kind', o.kind, o.nspname::text, o.name::text, o.owner, NULL, NULL
  FROM ours o WHERE o.kind <> 'TABLE' AND o.name IN ({tables})
  UNION ALL SELECT 3, 'code', i.type, '', i.identity, d.refobjid, nullif(h.via, h.class), h.part
  FROM hangs h JOIN pg_catalog.pg_shdepend d ON d.classid = h.class AND d.objid = h.object AND d.deptype = 'o'
    AND d.dbid = (SELECT b.oid FROM pg_catalog.pg_database b WHERE b.datname = pg_catalog.current_database()),
    LATERAL pg_catalog.pg_identify_object(h.class, h.object, 0) i
  UNION ALL SELECT 4, 'grant', x.privilege_type, s.nspname::text, s.relname::text, x.grantee, NULL, NULL
  FROM sources s, LATERAL (
    SELECT x.* FROM pg_catalog.aclexplode(s.relacl) x
    UNION ALL SELECT x.* FROM pg_catalog.pg_attribute a, pg_catalog.aclexplode(a.attacl) x WHERE a.attrelid = s.oid) x
  WHERE x.privilege_type IN ('TRIGGER', 'REFERENCES'))
SELECT f.fault, f.kind, f.schema, f.name,
       CASE f.owner WHEN '0' THEN 'PUBLIC' ELSE pg_catalog.pg_get_userbyid(f.owner)::text END AS owner,
       current_user::text AS self, coalesce(v.type, '') AS part, coalesce(v.object_names, '{}') AS names,
       f.kind IN ('VIEW', 'MATERIALIZED VIEW', 'FOREIGN TABLE') OR coalesce(v.type = 'policy', false) AS reads
FROM found f LEFT JOIN LATERAL pg_catalog.pg_identify_object_as_address(f.via, f.part, 0) v ON f.via IS NOT NULL
WHERE f.fault = 'kind' OR f.owner NOT IN (SELECT t.oid FROM trusted t)
ORDER BY reads DESC, f.nth, f.kind = 'table' DESC, f.via IS NOT NULL, v.type = 'table' DESC, f.name, v.object_names
LIMIT 1`

// strangers returns strangersSQL for an outbox, and for a table that it adopts, if that has a name. Owner is the role
// that the user has named, or "".
func strangers(table, source outbox.Table, owner []string) string {
	var tables []string
	for _, t := range []outbox.Table{
		table, table.DeadLetter(), VersionTable(table), table.Published(), lastPartition(table), RelayTable(table),
	} {
		tables = append(tables, QuoteLiteral(t.Name))
	}
	named, adopted := "NULL", "NULL"
	if len(owner) > 0 && owner[0] != "" {
		named = QuoteLiteral(owner[0])
	}
	if source != (outbox.Table{}) {
		adopted = QuoteLiteral(source.SQL())
	}
	return strings.NewReplacer("{schema}", QuoteLiteral(table.Schema), "{outbox}", QuoteLiteral(table.Name),
		"{tables}", strings.Join(tables, ", "), "{partition}", QuoteLiteral(lastPartition(table).Name),
		"{sequence}", QuoteLiteral(UsualSequence(table).Name), "{owner}", named, "{source}", adopted,
	).Replace(strangersSQL)
}

// ErrOwner says that a role that is not trusted owns an object of the outbox, or code that hangs on it.
var ErrOwner = errors.New("it is neither that role, nor the owner of the database, nor a superuser")

// stranger is a row of strangersSQL.
type stranger struct {
	// Fault is what is wrong: owner or kind of an object with our name, code of another role, or a grant.
	Fault string
	// Kind and Name are the object as in SQL if the fault is code, else Kind is as ALTER writes it, or a privilege.
	Kind, Schema, Name string
	Owner, Self        string
	// Part is the kind of what hangs on a table and uses the object, with the words of pg_identify_object_as_address;
	// "": the object itself does.
	Part  string
	Names []string
	// Reads: it also runs for those who only read.
	Reads bool
}

func (s stranger) problem() *problem.Problem {
	object, kind := outbox.Table{Schema: s.Schema, Name: s.Name}, strings.ToLower(s.Kind)
	away := fmt.Sprintf("ALTER %s %s RENAME TO %s", s.Kind, object.Printed(),
		outbox.QuoteIdentifier(s.Name+"_"+strings.ReplaceAll(kind, " ", "_")))
	role, may := outbox.Identifier(s.Owner), "if that role may do so, add --owner "+problem.ShellWord(s.Owner)
	what := fmt.Sprintf("%s %s belongs to role %s", kind, object, role)
	switch s.Fault {
	case "kind":
		return problem.New(away, "%s is %s, and has to be a table", object, WithArticle(s.Kind))
	case "owner":
		may = fmt.Sprintf("if that role is to own the outbox, add --owner %s, or connect as that role",
			problem.ShellWord(s.Owner))
	case "grant":
		what = fmt.Sprintf("role %s has %s on table %s", role, s.Kind, object)
		away = fmt.Sprintf("REVOKE TRIGGER, REFERENCES ON %s FROM %s", object.Printed(), grantee(s.Owner))
	default:
		code := problem.OneLine(kind + " " + s.Name)
		if what, away = code+" belongs to role "+role, "drop it, or give it to a trusted role"; s.Part != "" {
			what = fmt.Sprintf("%s uses %s of role %s", s.part(), code, role)
		}
		if drop := s.drop(); drop != "" {
			away = drop
		}
	}
	fix := fmt.Sprintf("-- %s; else: %s;", may, away)
	if s.Owner == public {
		fix = away + ";"
	}
	return &problem.Problem{
		What: fmt.Sprintf("%s, which is not trusted to run code as role %s", what, outbox.Identifier(s.Self)),
		Fix:  fix,
		Err:  ErrOwner,
	}
}

// on is the table of a part that has three names: the two of the table, and its own.
func (s stranger) on() outbox.Table { return outbox.Table{Schema: s.Names[0], Name: s.Names[1]} }

// part names what hangs on a table.
func (s stranger) part() string {
	kind := strings.TrimPrefix(s.Part, "table ")
	switch len(s.Names) {
	case 3:
		return fmt.Sprintf("%s %s of %s", kind, outbox.Identifier(s.Names[2]), s.on())
	case 2:
		return kind + " " + s.on().String()
	}
	return problem.OneLine(kind + " " + strings.Join(s.Names, "."))
}

// drop returns the statement that drops it; "": there is none.
func (s stranger) drop() string {
	if len(s.Names) != 3 {
		return ""
	}
	table, name := s.on().Printed(), outbox.QuoteIdentifier(s.Names[2])
	switch s.Part {
	case "trigger", "rule", "policy":
		return fmt.Sprintf("DROP %s %s ON %s", strings.ToUpper(s.Part), name, table)
	case "table constraint":
		return fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s", table, name)
	case "default value":
		return fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s DROP DEFAULT", table, name)
	}
	return ""
}

// public is everybody, who is no role.
const public = "PUBLIC"

func grantee(role string) string {
	if role == public {
		return role
	}
	return outbox.QuoteIdentifier(role)
}

// CheckOwners returns a *problem.Problem if an object with a name of the outbox is not ours, or if code of a role that
// is not trusted hangs on it. Owner is a role that is trusted, besides those that always are. It reads only catalogs.
func CheckOwners(ctx context.Context, db beginner, table outbox.Table, owner ...string) error {
	return CheckSource(ctx, db, table, outbox.Table{}, owner...)
}

// CheckSource is CheckOwners with a table that the outbox adopts.
func CheckSource(ctx context.Context, db beginner, table, source outbox.Table, owner ...string) error {
	return inPath(ctx, db, func(tx pgx.Tx) error {
		found, err := findStranger(ctx, tx, strangers(table, source, owner))
		if err != nil || found.Fault == "" {
			return err
		}
		return found.problem()
	})
}

// CheckTables is CheckOwners for a person who reads: a SELECT runs the code of a view or a policy, and none of a table.
func CheckTables(ctx context.Context, db beginner, table outbox.Table, owner ...string) error {
	return inPath(ctx, db, func(tx pgx.Tx) error {
		found, err := findStranger(ctx, tx, strangers(table, outbox.Table{}, owner))
		if err == nil && found.Reads {
			return found.problem()
		}
		return err
	})
}

// findStranger returns the worst one; an empty one: there is none.
func findStranger(ctx context.Context, tx pgx.Tx, sql string) (stranger, error) {
	rows, _ := tx.Query(ctx, sql)
	found, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[stranger])
	if errors.Is(err, pgx.ErrNoRows) {
		return stranger{}, nil
	}
	if err != nil {
		return stranger{}, fmt.Errorf("look for the owners of the outbox: %w", err)
	}
	return found, nil
}

// OwnersSQL does the same as CheckSource in a script. It must run after the script has locked the tables that it reads.
func OwnersSQL(table, source outbox.Table, owner ...string) string {
	return noJIT + `DO $owners$
DECLARE
    stranger record;
    what     text;
BEGIN
    FOR stranger IN` + strangers(table, source, owner) + `
    LOOP
        what := format('%s %I.%I belongs to', lower(stranger.kind), stranger.schema, stranger.name);
        IF stranger.fault = 'kind' THEN
            RAISE EXCEPTION '%.% has to be a table', quote_ident(stranger.schema), quote_ident(stranger.name)
                USING ERRCODE = 'wrong_object_type', HINT = 'Rename it.';
        ELSIF stranger.fault = 'code' THEN
            what := concat_ws(' of ', stranger.kind || ' ' || stranger.name,
              nullif(stranger.part || ' ' || array_to_string(stranger.names, '.'), ' ')) || ' belongs to';
        ELSIF stranger.fault = 'grant' THEN
            what := format('%s on %I.%I is granted to', stranger.kind, stranger.schema, stranger.name);
        END IF;
        RAISE EXCEPTION '% role %, which is not trusted to run code as role %', what,
            quote_ident(stranger.owner), quote_ident(stranger.self) USING ERRCODE = 'insufficient_privilege',
            HINT = format('If that role is to own the outbox, print the script with --owner %I. Else rename it.',
                          stranger.owner);
    END LOOP;
END $owners$;
`
}
