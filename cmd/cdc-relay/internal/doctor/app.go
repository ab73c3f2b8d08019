package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/grants"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// changing are the privileges on tables that only relays and operators need; MAINTAIN is one since Postgres 17. With
// TRIGGER and REFERENCES, a role hangs its code on a table.
const changing = `('{UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]
  || CASE WHEN current_setting('server_version_num')::int >= 170000 THEN '{MAINTAIN}' ELSE '{}' END::text[])`

const appSQL = `
SELECT jsonb_build_object('exists', true,
  'connect', has_database_privilege(r.oid, current_database(), 'CONNECT'),
  'usage', has_schema_privilege(r.oid, n.oid, 'USAGE'),
  'columns', (SELECT jsonb_agg(a.attname) FROM pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                AND has_column_privilege(r.oid, c.oid, a.attnum, 'INSERT')),
  'reads', (SELECT jsonb_agg(a.attname ORDER BY a.attname) FROM pg_attribute a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
              AND has_column_privilege(r.oid, c.oid, a.attnum, 'SELECT')),
  'sequence', (SELECT coalesce(bool_and(has_sequence_privilege(r.oid, q.oid, 'USAGE')), true) FROM pg_depend d
               JOIN pg_class q ON q.oid = d.objid AND q.relkind = 'S'
               WHERE d.classid = 'pg_class'::regclass AND d.refobjid = c.oid),
  'defaults', (SELECT jsonb_agg(DISTINCT jsonb_build_object(
                 'schema', s.nspname, 'name', q.relname, 'same', q.relowner = c.relowner))
               FROM pg_attrdef a JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = a.oid
                 AND d.refclassid = 'pg_class'::regclass
               JOIN pg_class q ON q.oid = d.refobjid JOIN pg_namespace s ON s.oid = q.relnamespace
               WHERE a.adrelid = c.oid
                 AND CASE q.relkind WHEN 'S' THEN NOT has_sequence_privilege(r.oid, q.oid, 'USAGE, UPDATE') END),
  'enqueue', EXISTS (SELECT FROM pg_proc f WHERE f.pronamespace = n.oid AND f.proname = $3 || '_enqueue'
                     AND has_function_privilege(r.oid, f.oid, 'EXECUTE')),
  'more', (SELECT jsonb_agg(p) FROM unnest('{SELECT}'::text[] || ` + changing + `) p
           WHERE has_table_privilege(r.oid, c.oid, p)
             OR p IN ('UPDATE', 'REFERENCES') AND has_any_column_privilege(r.oid, c.oid, p)),
  'others', (SELECT jsonb_agg(to_jsonb(o) ORDER BY o.name, o.role) FROM (
    SELECT s.nspname AS schema, o.relname AS name, o.relkind AS kind, coalesce(g.rolname, '') AS role,
           array_agg(DISTINCT x.privilege_type) AS privileges
    FROM pg_class o JOIN pg_namespace s ON s.oid = o.relnamespace, aclexplode(o.relacl) x
    LEFT JOIN pg_roles g ON g.oid = x.grantee
    WHERE (o.relnamespace = n.oid AND o.relname = ANY ($4::text[]) OR o.relkind = 'S' AND EXISTS (
             SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = o.oid AND d.refobjid = c.oid))
      AND o.oid <> c.oid AND x.grantee <> o.relowner AND x.privilege_type = ANY ('{INSERT}'::text[] || ` + changing + `)
      AND CASE x.grantee WHEN 0 THEN true ELSE pg_has_role(r.oid, x.grantee, 'USAGE') END
    GROUP BY 1, 2, 3, 4) o),
  'owner', r.rolsuper OR pg_has_role(r.oid, c.relowner, 'USAGE'),
  'rejected', c.relrowsecurity AND NOT r.rolsuper AND NOT r.rolbypassrls
              AND NOT (pg_has_role(r.oid, c.relowner, 'USAGE') AND NOT c.relforcerowsecurity)
              AND NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polpermissive
                              AND p.polcmd IN ('a', '*')
                              AND EXISTS (SELECT FROM unnest(p.polroles) m
                                          WHERE m = 0 OR pg_has_role(r.oid, m, 'USAGE'))))
FROM pg_roles r
LEFT JOIN pg_namespace n ON n.nspname = $2
LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = $3 AND c.relkind IN ('r', 'p')
WHERE r.rolname = $1`

// appFacts describe the role of an application.
type appFacts struct {
	Name                   string
	Exists, Connect, Usage bool
	Columns                []string // columns with the INSERT privilege
	More                   []string // other privileges on the table
	// Others are privileges to change the other tables, and the sequence.
	Others []otherFacts
	// Reads are the columns that it may SELECT. ORMs need id for RETURNING id, and Sequence for lastval.
	Reads    []string
	Sequence bool
	// Defaults are the sequences of default values that it may not use.
	Defaults []sequenceFacts
	Enqueue  bool // it may call <table>_enqueue, which needs no INSERT
	Owner    bool // or superuser
	Rejected bool // row-level security rejects every row
}

// otherFacts are privileges that a role, or PUBLIC if it is "", has on a table or sequence.
type otherFacts struct {
	outbox.Table
	Kind, Role string
	Privileges []string
}

type sequenceFacts struct {
	outbox.Table
	Same bool // its owner is that of the outbox
}

func (o Options) askApp(ctx context.Context, s *session, role string) answer[appFacts] {
	a := ask[appFacts](ctx, s, appSQL, role, o.Table.Schema, o.Table.Name, o.tableNames())
	a.value.Name = role
	return a
}

func (j *databaseJudge) judgeApp(c chart, about answer[appFacts]) {
	app := about.value
	name, role := app.Name, quote(app.Name)
	usage, insert := grant(grants.Usage(j.o.Table.Schema), role), grant(grants.Insert(j.o.Table), role)
	switch {
	case c.unknown("application", about.err):
		return
	case !app.Exists:
		c.wrong("application", lines(sql("CREATE ROLE %s LOGIN PASSWORD '...'", role), usage, insert),
			"role %q does not exist", name)
		return
	case !j.there:
		return // reported already
	}
	var wrong []string
	var missing steps
	add := func(is bool, says string, cure steps) {
		if is {
			wrong, missing = append(wrong, says), lines(missing, cure)
		}
	}
	add(!app.Connect, "connect to the database", grant(grants.Connect(j.server.Database), role))
	add(!app.Usage, "use schema "+j.o.Table.Schema, usage)
	add(!app.inserts() && !app.Enqueue, "INSERT into "+j.o.Table.String(), insert)
	for _, s := range app.Defaults {
		use := sql("GRANT USAGE ON SEQUENCE %s TO %s", s.Table, role)
		if s.Same {
			use = use.safe() // a default can name any sequence, also one that belongs to others
		}
		add(!app.Enqueue, "use sequence "+s.Table.String()+" of a default value", use)
	}
	add(app.Rejected && !app.Enqueue, "INSERT through row-level security",
		sql("CREATE POLICY outbox_insert ON %s FOR INSERT TO %s WITH CHECK (true)", j.o.Table.Printed(), role))
	switch {
	case len(wrong) > 0:
		c.wrong("application", missing, "role %q may not %s", name, strings.Join(wrong, ", nor "))
	case !app.inserts():
		c.ok("application", "role %q may call %s_enqueue, and not INSERT", name, j.o.Table)
	default:
		j.judgeAppGrants(c, app)
		j.judgeReturning(c, app)
	}
}

// judgeAppGrants reports what the application may do besides the INSERT of messages.
func (j *databaseJudge) judgeAppGrants(c chart, app appFacts) {
	name, reads := app.Name, strings.Join(app.Reads, ", ")
	own := slices.DeleteFunc(schema.NotSet(), func(column string) bool {
		return !slices.Contains(app.Columns, column)
	})
	switch {
	case app.Owner:
		c.ok("application", "role %q may INSERT; as the owner or a superuser it may do anything with the table", name)
	case len(app.More)+len(app.Others) > 0:
		var more []string
		var revoke steps
		if len(app.More) > 0 {
			more, revoke = append(more, strings.Join(app.More, ", ")), j.revoke(app.More, name)
		}
		for _, o := range app.Others {
			privileges, on := strings.Join(o.Privileges, ", "), o.Table.Printed()
			if o.Kind == "S" {
				on = "SEQUENCE " + on
			}
			more = append(more, privileges+" on "+o.Table.String())
			revoke = lines(revoke, sql("REVOKE %s ON %s FROM %s", privileges, on, grantFacts{Role: o.Role}.role()))
		}
		c.warn("application", revoke,
			"role %q may %s besides INSERT, and needs only INSERT", name, strings.Join(more, "; "))
	case len(own) > 0:
		c.warn("application", j.narrow(name), "role %q may INSERT into %s, which are the relay's own: "+
			"it can take the ids of others and delay their messages. Grant the other columns instead",
			name, strings.Join(own, ", "))
	case reads != "":
		c.ok("application", "role %q may INSERT and read %s", name, reads)
	default:
		c.ok("application", "role %q may INSERT, and nothing else", name)
	}
}

// narrow replaces INSERT on more columns by INSERT on those of a message, for each role from which the application has
// it.
func (j *databaseJudge) narrow(role string) (all steps) {
	for _, g := range j.f.grants.value {
		if slices.Contains(g.Apps, role) && slices.Contains(g.Privileges, "INSERT") {
			all = lines(all, sql("REVOKE INSERT ON %s FROM %s", j.o.Table.Printed(), g.role()),
				grant(grants.Insert(j.o.Table), g.role()))
		}
	}
	if all == nil {
		return remark("-- the role has it through a role such as pg_write_all_data")
	}
	return all
}

// revoke takes privileges from the role, and from those through which it has them.
func (j *databaseJudge) revoke(privileges []string, role string) (all steps) {
	from := func(grantee string, privileges []string) steps {
		return sql("REVOKE %s ON %s FROM %s", strings.Join(privileges, ", "), j.o.Table.Printed(), grantee)
	}
	for _, g := range j.f.grants.value {
		given := slices.DeleteFunc(slices.Clone(privileges),
			func(p string) bool { return !slices.Contains(g.Privileges, p) })
		if slices.Contains(g.Apps, role) && len(given) > 0 {
			all = lines(all, from(g.role(), given))
		}
	}
	if all == nil {
		return from(quote(role), privileges)
	}
	return all
}

// judgeReturning: ORMs send INSERT … RETURNING, or call lastval or currval after it.
func (j *databaseJudge) judgeReturning(c chart, app appFacts) {
	for _, column := range schema.Returning() {
		if !slices.Contains(app.Reads, column) {
			c.ok("returning", "role %q may not read %s, so INSERT … RETURNING fails. SQLAlchemy, Django, Sequelize, "+
				"TypeORM, gorm, ActiveRecord, Eloquent and generated keys in JDBC send it, unless the program sets "+
				"the key. To allow it: %s;", app.Name, column, grants.Returning(j.o.Table).To(quote(app.Name)))
			return
		}
	}
	says := ""
	if sequence := j.tables.Sequence; !app.Sequence && sequence != (outbox.Table{}) {
		says = ". lastInsertId of PDO and Doctrine fails. To allow it: " +
			grants.Draw(sequence).To(quote(app.Name)) + ";"
	}
	c.ok("returning", "INSERT … RETURNING id, message_id works for role %q%s", app.Name, says)
}

// inserts: a grant on the columns of every message is enough.
func (a appFacts) inserts() bool {
	return slices.Contains(a.Columns, "routing_key") &&
		(slices.Contains(a.Columns, "payload") || slices.Contains(a.Columns, "payload_bytes"))
}

// grantsSQL lists who has privileges on the outbox, besides superusers and its owner: by a grant on the table or on
// columns, or as a member of pg_write_all_data. trusted: the role of the relay is a member, or it was granted something
// on the dead-letter table, as relays and operators are, and applications are not.
const grantsSQL = `
WITH tables AS (SELECT c.oid, c.relname, c.relowner, c.relacl FROM pg_class c
                JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = $1 AND c.relname IN ($2, $3) AND c.relkind IN ('r', 'p')),
given AS (SELECT t.relname, t.relowner, x.grantee, x.privilege_type AS privilege FROM tables t, aclexplode(t.relacl) x
          UNION SELECT t.relname, t.relowner, x.grantee, x.privilege_type FROM tables t
            JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped, aclexplode(a.attacl) x),
held AS (SELECT grantee, relowner, '' AS inherited, array_agg(DISTINCT privilege) AS privileges FROM given
         WHERE relname = $2 AND privilege = ANY ('{SELECT,INSERT}'::text[] || ` + changing + `)
           GROUP BY grantee, relowner
         UNION ALL SELECT m.member, t.relowner, r.rolname, '{INSERT,UPDATE,DELETE}'
         FROM tables t, pg_auth_members m JOIN pg_roles r ON r.oid = m.roleid
         WHERE t.relname = $2 AND r.rolname = 'pg_write_all_data')
SELECT jsonb_agg(jsonb_build_object('role', r.rolname, 'inherited', h.inherited,
  'privileges', (SELECT jsonb_agg(p ORDER BY array_position('{SELECT,INSERT}'::text[] || ` + changing + `, p))
                 FROM unnest(h.privileges) p),
  'apps', (SELECT jsonb_agg(a.rolname) FROM pg_roles a
           WHERE a.rolname = ANY ($4::text[]) AND CASE WHEN r.oid IS NULL THEN true
             ELSE pg_has_role(a.oid, r.oid, 'USAGE') END),
  'trusted', r.oid IS NOT NULL AND (
    pg_has_role(current_user, r.oid, 'USAGE') AND NOT (SELECT s.rolsuper FROM pg_roles s WHERE s.rolname = current_user)
    OR EXISTS (SELECT FROM given d
               WHERE d.relname = $3 AND d.grantee <> 0 AND pg_has_role(r.oid, d.grantee, 'USAGE'))),
  'members', (SELECT jsonb_agg(m.rolname ORDER BY m.rolname) FROM (
    SELECT p.rolname FROM pg_auth_members s JOIN pg_roles p ON p.oid = s.member WHERE s.roleid = r.oid
    ORDER BY 1 LIMIT 5) m)) ORDER BY r.rolname, h.inherited)
FROM held h LEFT JOIN pg_roles r ON r.oid = h.grantee
WHERE h.grantee = 0 OR r.oid IS NOT NULL AND NOT r.rolsuper AND NOT pg_has_role(r.oid, h.relowner, 'USAGE')`

// grantFacts are what a role may do with the outbox, by a grant to it.
type grantFacts struct {
	Role string // "": PUBLIC
	// Inherited is the predefined role that gives it; "": a grant on the table or its columns.
	Inherited  string
	Privileges []string
	Apps       []string // roles of AppRoles that have it by this
	Trusted    bool     // a relay's role or an operator's
	Members    []string // up to five
}

func (o Options) askGrants(ctx context.Context, s *session) answer[[]grantFacts] {
	apps := append([]string{}, o.AppRoles...)
	return ask[[]grantFacts](ctx, s, grantsSQL, o.Table.Schema, o.Table.Name, o.Table.DeadLetter().Name, apps)
}

// judgeWriters reports roles that may change or remove rows of the outbox. A role that was granted something on the
// dead-letter table is a relay's or an operator's.
func (j *databaseJudge) judgeWriters(c chart) {
	if c.unknown("writers", j.f.grants.err) {
		return
	}
	before := len(*c.findings)
	for _, g := range j.f.grants.value {
		changes := strings.Join(slices.DeleteFunc(slices.Clone(g.Privileges),
			func(p string) bool { return p == "SELECT" || p == "INSERT" }), ", ")
		if changes != "" && !g.Trusted && len(g.Apps) == 0 {
			j.judgeWriter(c.about(g.Role), g, changes)
		}
	}
	if len(*c.findings) == before {
		c.ok("writers", "only relays, operators and the owner may change rows of %s", j.o.Table)
	}
}

func (j *databaseJudge) judgeWriter(c chart, g grantFacts, changes string) {
	revoke := sql("REVOKE %s ON %s FROM %s", changes, j.o.Table.Printed(), g.role())
	who := fmt.Sprintf("role %q", g.Role)
	switch {
	case g.Role == "":
		who = "every role (PUBLIC)"
	case g.Inherited != "":
		who += ", as a member of " + g.Inherited + ","
	case len(g.Members) > 0:
		who += ", with its members " + strings.Join(g.Members, ", ") + ","
	}
	if g.Inherited != "" {
		revoke = sql("REVOKE %s FROM %s", quote(g.Inherited), g.role())
	}
	c.warn("writers", revoke, "%s may %s rows of %s, and is neither a relay nor an operator. The relay publishes a "+
		"row as it was inserted: a later UPDATE can be lost, and a DELETE does not stop the message",
		who, changes, j.o.Table)
}

// role is the grantee, as SQL writes it.
func (g grantFacts) role() string {
	if g.Role == "" {
		return "PUBLIC"
	}
	return quote(g.Role)
}
