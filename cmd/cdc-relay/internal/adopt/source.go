package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// source describes the table to adopt, from the catalog.
type source struct {
	table outbox.Table

	Kind    string      `json:"kind"` // relkind: r table, p partitioned, v view
	Owner   string      `json:"owner"`
	Columns []column    `json:"columns"`
	Key     []keyColumn `json:"key"`
	// References are the foreign keys to it, or to its partitions.
	References []obstacle `json:"references"`
	// Children are the tables that inherit from it; partitions are none.
	Children []outbox.Table `json:"children"`
	// Guards are triggers and rules that can prevent a DELETE, such as "trigger forbid".
	Guards []obstacle `json:"guards"`
	// Trigger is the function of the trigger that adopted the table; "" if there is none.
	Trigger string `json:"trigger"`
	// OutboxOwner is "" if the outbox does not exist.
	OutboxOwner string `json:"outbox_owner"`
	// OwnerMay: the owner of the outbox may SELECT and DELETE from the table.
	OwnerMay bool `json:"owner_may"`
	// Hidden: row security hides rows from the owner of the outbox. HiddenFrom is the role of this session if it hides
	// rows from it, else "".
	Hidden     bool   `json:"hidden"`
	HiddenFrom string `json:"hidden_from"`
	// Grants are the table's grants, to copy to a view.
	Grants []grant `json:"grants"`
}

// obstacle is what prevents a DELETE. Its names are as in the catalog, without quotes.
type obstacle struct {
	Kind  string       `json:"kind"` // foreign key, trigger or rule
	Name  string       `json:"name"`
	Table outbox.Table `json:"table"` // to which it belongs
}

func (o obstacle) fix() string {
	action := map[string]string{
		"foreign key": "DROP CONSTRAINT",
		"trigger":     "DISABLE TRIGGER",
		"rule":        "DISABLE RULE",
	}[o.Kind]
	return fmt.Sprintf("ALTER TABLE %s %s %s;", o.Table, action, outbox.Identifier(o.Name))
}

// named returns the names and the fixes. A table other than this one is named, too.
func named(table outbox.Table, all []obstacle) (names, fix string) {
	names = join(all, " and ", func(o obstacle) string {
		if o.Table != table {
			return o.Kind + " " + outbox.Identifier(o.Name) + " of " + o.Table.String()
		}
		return o.Kind + " " + outbox.Identifier(o.Name)
	})
	return names, join(all, " ", obstacle.fix) + "  -- or adopt it with --view"
}

type column struct {
	Name string `json:"name"`
	// Type is the base type: json, jsonb, text, uuid, bytea, timestamptz, … A type of another schema has a longer name.
	Type    string `json:"type"`
	Default string `json:"default"`
	// Sequence is the sequence of an identity column, as SQL writes it.
	Sequence  string `json:"sequence"`
	Generated bool   `json:"generated"`
}

// keyColumn is a column of the primary key.
type keyColumn struct {
	Name string `json:"name"`
	// Equals is the operator of its index, as SQL writes it. The search_path may not find it.
	Equals string `json:"equals"`
}

type grant struct {
	Privilege string `json:"privilege"` // such as INSERT, or INSERT (topic) for a column
	Grantee   string `json:"grantee"`   // as SQL writes it
	Option    bool   `json:"option"`
}

// A JSON null leaves a field of source empty.
const sourceSQL = `
WITH named AS NOT MATERIALIZED (
  SELECT t.oid, pg_catalog.jsonb_build_object('Schema', n.nspname, 'Name', t.relname) AS name
  FROM pg_catalog.pg_class t JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace)
SELECT pg_catalog.jsonb_build_object(
  'kind', c.relkind, 'owner', pg_catalog.pg_get_userbyid(c.relowner),
  'columns', (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('name', a.attname,
      'type', CASE coalesce(b.typnamespace, t.typnamespace) WHEN 'pg_catalog'::regnamespace::oid
                THEN coalesce(b.typname, t.typname)::text ELSE pg_catalog.format_type(a.atttypid, NULL) END,
      'default', CASE WHEN a.attgenerated = '' THEN pg_catalog.pg_get_expr(d.adbin, d.adrelid) END,
      'sequence', (SELECT q.objid::regclass::text FROM pg_catalog.pg_depend q
                   WHERE a.attidentity <> '' AND q.deptype = 'i' AND q.classid = 'pg_catalog.pg_class'::regclass
                     AND q.refclassid = q.classid AND q.refobjid = c.oid AND q.refobjsubid = a.attnum),
      'generated', a.attgenerated <> '') ORDER BY a.attnum)
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_catalog.pg_type b ON b.oid = t.typbasetype
    LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
  'key', (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('name', a.attname,
      'equals', CASE pn.nspname WHEN 'pg_catalog' THEN p.oprname
        ELSE pg_catalog.format('OPERATOR(%I.%s)', pn.nspname, p.oprname) END) ORDER BY k.n)
    FROM pg_catalog.pg_index i, LATERAL ROWS FROM (pg_catalog.unnest(i.indkey::smallint[]),
      pg_catalog.unnest(i.indclass::oid[])) WITH ORDINALITY k(attnum, class, n)
    JOIN pg_catalog.pg_opclass l ON l.oid = k.class
    JOIN pg_catalog.pg_amop m ON m.amopfamily = l.opcfamily AND m.amoplefttype = l.opcintype
      AND m.amoprighttype = l.opcintype AND m.amopstrategy = 3
    JOIN pg_catalog.pg_operator p ON p.oid = m.amopopr JOIN pg_catalog.pg_namespace pn ON pn.oid = p.oprnamespace
    JOIN pg_catalog.pg_attribute a ON a.attnum = k.attnum
    WHERE i.indrelid = c.oid AND i.indisprimary AND a.attrelid = c.oid),
  'references', (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
      'kind', 'foreign key', 'name', f.conname, 'table', t.name) ORDER BY f.conname)
    FROM pg_catalog.pg_constraint f JOIN named t ON t.oid = f.conrelid
    WHERE f.contype = 'f' AND f.conrelid <> c.oid AND f.conparentid = 0
      AND (f.confrelid = c.oid OR c.relkind = 'p'
           AND f.confrelid IN (SELECT t.relid FROM pg_catalog.pg_partition_tree(c.oid) t))),
  'children', (SELECT pg_catalog.jsonb_agg(t.name ORDER BY h.inhseqno)
    FROM pg_catalog.pg_inherits h JOIN named t ON t.oid = h.inhrelid
    WHERE h.inhparent = c.oid AND c.relkind = 'r'),
  'guards', (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
      'kind', g.kind, 'name', g.name, 'table', t.name) ORDER BY g.kind DESC, g.name)
    FROM (
      SELECT 'trigger', g.tgname, g.tgrelid FROM pg_catalog.pg_trigger g
      WHERE (g.tgrelid = c.oid OR c.relkind = 'p' AND g.tgparentid = 0
             AND g.tgrelid IN (SELECT t.relid FROM pg_catalog.pg_partition_tree(c.oid) t))
        AND g.tgtype & 8 = 8 AND NOT g.tgisinternal AND g.tgenabled IN ('O', 'A') -- DELETE
      UNION ALL SELECT 'rule', w.rulename, c.oid FROM pg_catalog.pg_rewrite w
      WHERE w.ev_class = c.oid AND w.ev_type = '4' AND w.ev_enabled IN ('O', 'A') -- DELETE
    ) g(kind, name, relation) JOIN named t ON t.oid = g.relation),
  'trigger', (SELECT '"' || replace(fn.nspname, '"', '""') || '"."' || replace(f.proname, '"', '""') || '"'
    FROM pg_catalog.pg_trigger g JOIN pg_catalog.pg_proc f ON f.oid = g.tgfoid
    JOIN pg_catalog.pg_namespace fn ON fn.oid = f.pronamespace
    WHERE g.tgrelid = c.oid AND g.tgname = $3),
  'outbox_owner', pg_catalog.pg_get_userbyid(o.relowner),
  'owner_may', pg_catalog.has_table_privilege(o.relowner, c.oid, 'SELECT')
    AND pg_catalog.has_table_privilege(o.relowner, c.oid, 'DELETE')
    AND pg_catalog.has_schema_privilege(o.relowner, c.relnamespace, 'USAGE'),
  'hidden', c.relrowsecurity
    AND EXISTS (SELECT FROM pg_catalog.pg_roles x WHERE x.oid = o.relowner AND NOT x.rolsuper AND NOT x.rolbypassrls)
    AND (c.relforcerowsecurity OR NOT pg_catalog.pg_has_role(o.relowner, c.relowner, 'USAGE')),
  'hidden_from', CASE WHEN pg_catalog.row_security_active(c.oid) THEN current_user END,
  'grants', (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
      'privilege', x.privilege_type || x.part, 'option', x.is_grantable, 'grantee', CASE x.grantee WHEN 0 THEN 'PUBLIC'
        ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(x.grantee)) END))
    FROM (SELECT '' AS part, x.* FROM pg_catalog.aclexplode(c.relacl) x
          UNION ALL SELECT pg_catalog.format(' (%I)', a.attname), x.*
          FROM pg_catalog.pg_attribute a, pg_catalog.aclexplode(a.attacl) x
          WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) x
    WHERE x.grantee <> c.relowner
      AND x.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRIGGER', 'REFERENCES')))
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_class o ON o.oid = pg_catalog.to_regclass($4)
WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p', 'v')`

// UsualTable returns the layout's table with its usual name.
func UsualTable(ctx context.Context, conn *pgx.Conn, layout string) (outbox.Table, error) {
	if name := layoutOf(layout).get("table"); name != "" {
		return outbox.ParseName(name)
	}
	rows, _ := conn.Query(ctx, `SELECT tablename FROM pg_catalog.pg_tables
		WHERE schemaname = 'public' AND tablename LIKE 'watermill\_%' AND tablename NOT LIKE 'watermill\_offsets\_%'
		  ORDER BY 1`)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return outbox.Table{}, fmt.Errorf("look for tables of Watermill: %w", err)
	}
	if len(names) != 1 {
		return outbox.Table{}, problem.New(
			"cdc-relay adopt watermill --from "+strings.Join(append(names, "TABLE")[:1], ""),
			"%d tables of the schema public have a name of the form watermill_TOPIC: %s",
			len(names), strings.Join(names, ", "))
	}
	return outbox.Table{Schema: "public", Name: names[0]}, nil
}

// database is a connection or a transaction.
type database interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func readSource(ctx context.Context, db database, table, into outbox.Table) (*source, error) {
	s := new(source)
	err := db.QueryRow(ctx, sourceSQL, table.Schema, table.Name, triggerName, into.SQL()).Scan(s)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, problem.New("# set --from to the table",
			"table %s does not exist in this database", table)
	case err != nil:
		return nil, fmt.Errorf("read the catalog for %s: %w", table, err)
	}
	s.table = table
	return s, nil
}

// check reports obstacles, before an adoption and after it.
func (s *source) check(r Request) error {
	owner := outbox.QuoteIdentifier(s.OutboxOwner)
	references, unbound := named(s.table, s.References)
	guards, unguarded := named(s.table, s.Guards)
	switch {
	case s.OutboxOwner == "":
		return problem.New(problem.Command(r.Outbox, "setup"), "the outbox %s does not exist", r.Outbox)
	case s.table == r.Outbox:
		return problem.New("# set --from to another table", "%s is the outbox itself", s.table)
	case s.Kind == "v":
		return problem.New("cdc-relay adopt --undo --from "+shell(s.table.String()), "%s is a view", s.table)
	case len(s.Key) == 0:
		return problem.New(fmt.Sprintf("ALTER TABLE %s ADD PRIMARY KEY (COLUMN);", s.table.Printed()),
			"table %s has no primary key, and rows are deleted by it", s.table)
	case len(s.Children) > 0:
		return problem.New(fmt.Sprintf("ALTER TABLE %s NO INHERIT %s;  -- and adopt the child tables",
			s.Children[0].Printed(), s.table.Printed()),
			"table %s has child tables %s, and their rows would stay there",
			s.table, join(s.Children, ", ", outbox.Table.String))
	case len(s.References) > 0 && !r.View:
		return problem.New(unbound,
			"table %s is the target of %s: a DELETE of its rows fails there, or changes rows, and adopt deletes rows",
			s.table, references)
	case len(s.Guards) > 0 && !r.View:
		return problem.New(unguarded,
			"table %s has %s, which can prevent a DELETE, and adopt deletes rows", s.table, guards)
	case r.View && s.Kind == "p":
		return problem.New(r.with(false), "table %s is partitioned, and --view cannot replace it", s.table)
	case r.View && s.Owner != s.OutboxOwner:
		return problem.New(fmt.Sprintf("ALTER TABLE %s OWNER TO %s;", s.table.Printed(), owner),
			"with --view, %s and %s need the same owner", s.table, r.Outbox)
	case !s.OwnerMay && !r.View:
		return problem.New(fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s; GRANT SELECT, DELETE ON %s TO %[2]s;",
			outbox.QuoteIdentifier(s.table.Schema), owner, s.table.Printed()),
			"role %q, the owner of %s, may not read and delete rows of %s", s.OutboxOwner, r.Outbox, s.table)
	case s.Hidden:
		return s.hides(s.OutboxOwner)
	case r.View && r.only() != "":
		return problem.New(r.with(false), "table %s also keeps rows that are no messages, and a view cannot", s.table)
	}
	for _, c := range s.Columns {
		if r.View && c.Generated {
			return problem.New(r.with(false),
				"column %s of %s is generated, and a view cannot do that", c.Name, s.table)
		}
	}
	return nil
}

// join joins what text says of each.
func join[T any](all []T, separator string, text func(T) string) string {
	texts := make([]string, len(all))
	for i, one := range all {
		texts[i] = text(one)
	}
	return strings.Join(texts, separator)
}

func (s *source) hides(role string) error {
	return problem.New(fmt.Sprintf("ALTER ROLE %s BYPASSRLS;", outbox.QuoteIdentifier(role)),
		"row security of table %s hides rows from role %q, which must move them", s.table, role)
}

// accepts asks Postgres whether a condition is one on the columns of the table. It also asks without parentheses, which
// the condition could close.
func (s *source) accepts(ctx context.Context, db database, condition string) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		from := "SELECT FROM (SELECT r.* FROM " + s.table.SQL() + " r) s WHERE "
		rows, _ := tx.Query(ctx, from+"("+ended(condition)+") UNION ALL "+from+ended(condition)+"LIMIT 0")
		rows.Close()
		return rows.Err()
	})
}

func (s *source) lacks(name string) bool {
	return !slices.ContainsFunc(s.Columns, func(c column) bool { return c.Name == name })
}

// key returns the names of the primary key's columns.
func (s *source) key() []string {
	names := make([]string, len(s.Key))
	for i, c := range s.Key {
		names[i] = c.Name
	}
	return names
}

func (s *source) names() string {
	return join(s.Columns, ", ", func(c column) string { return c.Name })
}

// shell quotes a word for the shell if necessary.
func shell(word string) string { return problem.ShellWord(word) }
