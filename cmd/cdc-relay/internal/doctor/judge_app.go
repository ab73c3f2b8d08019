package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/grants"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func (j *databaseJudge) judgeApp(c *chart, about answer[appFacts]) {
	app := about.value
	name, role := app.Name, quote(app.Name)
	_, there := j.f.tables.value.Tables[j.o.Table.Name]
	switch {
	case about.err != nil:
		c.unknown("application", about.err).about(name)
		return
	case !app.Exists:
		c.wrong("application",
			lines(sql("CREATE ROLE %s LOGIN PASSWORD '...'", role), j.grantUsage(role), j.grantInsert(role)),
			"role %q does not exist", name).about(name)
		return
	case !there:
		return // reported already
	}
	var wrong []string
	var missing fix
	add := func(is bool, says string, grant fix) {
		if is {
			wrong, missing = append(wrong, says), lines(missing, grant)
		}
	}
	add(!app.Connect, "connect to the database", sql("%s", grants.Connect(j.server.Database).To(role)).safe())
	add(!app.Usage, "use schema "+j.o.Table.Schema, j.grantUsage(role))
	add(!app.inserts() && !app.Enqueue, "INSERT into "+j.o.Table.String(), j.grantInsert(role))
	for _, s := range app.Defaults {
		grant := sql("GRANT USAGE ON SEQUENCE %s TO %s", s.table(), role)
		if s.Same {
			grant = grant.safe() // a default can name any sequence, also one that belongs to others
		}
		add(!app.Enqueue, "use sequence "+s.table().String()+" of a default value", grant)
	}
	add(app.Rejected && !app.Enqueue, "INSERT through row-level security",
		sql("CREATE POLICY outbox_insert ON %s FOR INSERT TO %s WITH CHECK (true)", j.o.Table.Printed(), role))
	switch {
	case len(wrong) > 0:
		c.wrong("application", missing, "role %q may not %s", name, strings.Join(wrong, ", nor ")).about(name)
	case !app.inserts():
		c.ok("application", "role %q may call %s, and not INSERT",
			name, outbox.Table{Schema: j.o.Table.Schema, Name: j.o.Table.Name + "_enqueue"}).about(name)
	default:
		j.judgeAppGrants(c, app)
		j.judgeReturning(c, app)
	}
}

// judgeAppGrants reports what the application may do besides the INSERT of messages.
func (j *databaseJudge) judgeAppGrants(c *chart, app appFacts) {
	name := app.Name
	var own []string
	for _, column := range schema.NotSet() {
		if slices.Contains(app.Columns, column) {
			own = append(own, column)
		}
	}
	cancels := app.Cancel && slices.Contains(app.Reads, "message_id")
	switch {
	case app.Owner:
		c.ok("application", "role %q may INSERT; as the owner or a superuser it may do anything with the table", name).
			about(name)
	case len(app.More) > 0:
		c.warn("application", j.revoke(app.More, name),
			"role %q may %s besides INSERT, and needs only INSERT", name, strings.Join(app.More, ", ")).about(name)
	case len(own) > 0:
		c.warn("application", j.narrow(name), "role %q may INSERT into %s, which are the relay's own: "+
			"it can take the ids of others and delay their messages. Grant the other columns instead",
			name, strings.Join(own, ", ")).about(name)
	case !app.Login:
		c.ok("application", "role %q may INSERT, and so may its members: it cannot log in itself", name).about(name)
	case cancels:
		c.ok("application", "role %q may INSERT, read %s and call %s: so it can delete waiting messages of others",
			name, strings.Join(app.Reads, ", "),
			outbox.Table{Schema: j.o.Table.Schema, Name: j.o.Table.Name + "_cancel"}).about(name)
	case len(app.Reads) > 0:
		c.ok("application", "role %q may INSERT and read %s", name, strings.Join(app.Reads, ", ")).about(name)
	default:
		c.ok("application", "role %q may INSERT, and nothing else", name).about(name)
	}
}

// narrow replaces INSERT on more columns by INSERT on those of a message, for each role from which the application has
// it.
func (j *databaseJudge) narrow(role string) fix {
	var all fix
	for _, g := range j.f.grants.value {
		if slices.Contains(g.Apps, role) && slices.Contains(g.Privileges, "INSERT") {
			all = lines(all, sql("REVOKE INSERT ON %s FROM %s", j.o.Table.Printed(), g.role()), j.grantInsert(g.role()))
		}
	}
	if all == nil {
		return remark("-- the role has it through a role such as pg_write_all_data")
	}
	return all
}

// revoke takes privileges from the role, and from those through which it has them.
func (j *databaseJudge) revoke(privileges []string, role string) fix {
	var all fix
	for _, g := range j.f.grants.value {
		given := slices.DeleteFunc(slices.Clone(privileges),
			func(p string) bool { return !slices.Contains(g.Privileges, p) })
		if slices.Contains(g.Apps, role) && len(given) > 0 {
			all = lines(all, sql("REVOKE %s ON %s FROM %s", strings.Join(given, ", "), j.o.Table.Printed(), g.role()))
		}
	}
	if all == nil {
		return sql("REVOKE %s ON %s FROM %s", strings.Join(privileges, ", "), j.o.Table.Printed(), quote(role))
	}
	return all
}

// judgeReturning: ORMs send INSERT … RETURNING, or call nextval before.
func (j *databaseJudge) judgeReturning(c *chart, app appFacts) {
	name, sequence := app.Name, j.f.tables.value.Sequence
	for _, column := range schema.Returning() {
		if !slices.Contains(app.Reads, column) {
			c.ok("returning", "role %q may not read %s, so INSERT … RETURNING fails. SQLAlchemy, Django, Sequelize, "+
				"TypeORM, gorm, ActiveRecord, Eloquent and generated keys in JDBC send it, unless the program "+
				"sets the key. To allow it: %s;", name, column, grants.Returning(j.o.Table).To(quote(name))).about(name)
			return
		}
	}
	says := ""
	if !app.Sequence && sequence != (outbox.Table{}) {
		says = fmt.Sprintf(". A client that calls nextval also needs INSERT (id), and: "+
			"GRANT USAGE ON SEQUENCE %s TO %s;", sequence, quote(name))
	}
	c.ok("returning", "INSERT … RETURNING id, message_id works for role %q%s", name, says).about(name)
}

// inserts: a grant on the columns of every message is enough.
func (a appFacts) inserts() bool {
	return slices.Contains(a.Columns, "routing_key") &&
		(slices.Contains(a.Columns, "payload") || slices.Contains(a.Columns, "payload_bytes"))
}

func (j *databaseJudge) grantUsage(role string) fix {
	return sql("%s", grants.Usage(j.o.Table.Schema).To(role)).safe()
}

// grantInsert grants what every application needs.
func (j *databaseJudge) grantInsert(role string) fix {
	return sql("%s", grants.Insert(j.o.Table).To(role)).safe()
}

// ExamineApp returns what is wrong with the privileges of an application's role: one that it lacks, or has besides what
// it needs. The role and the table must exist.
func ExamineApp(ctx context.Context, conn *pgx.Conn, table outbox.Table, role string) ([]Finding, error) {
	o, s := Options{Table: table, AppRoles: []string{role}}, &session{conn: conn}
	app, given := o.gatherApp(ctx, s, role), o.gatherGrants(ctx, s)
	if err := errors.Join(app.err, given.err); err != nil {
		return nil, fmt.Errorf("examine role %s: %w", outbox.Identifier(role), err)
	}
	j := &databaseJudge{o: o, f: databaseFacts{grants: given}}
	j.f.tables.value.Tables = map[string]tableFacts{table.Name: {}}
	j.server.Database = conn.Config().Database
	c := &chart{area: Grants}
	j.judgeApp(c, app)
	return slices.DeleteFunc(c.findings, func(f Finding) bool { return f.Level == OK }), nil
}

// judgeWriters reports roles that may change or remove rows of the outbox. A role that was granted something on the
// dead-letter table is a relay's or an operator's.
func (j *databaseJudge) judgeWriters(c *chart) {
	if j.f.grants.err != nil {
		c.unknown("writers", j.f.grants.err)
		return
	}
	clean := true
	for _, g := range j.f.grants.value {
		changes := slices.DeleteFunc(slices.Clone(g.Privileges),
			func(p string) bool { return p == "SELECT" || p == "INSERT" })
		if len(changes) == 0 || g.Trusted || len(g.Apps) > 0 {
			continue
		}
		clean = false
		all := strings.Join(changes, ", ")
		fix := sql("REVOKE %s ON %s FROM %s", all, j.o.Table.Printed(), g.role())
		if g.Inherited != "" {
			fix = sql("REVOKE %s FROM %s", quote(g.Inherited), g.role())
		}
		c.warn("writers", fix, "%s may %s rows of %s, and is neither a relay nor an operator. "+
			"The relay publishes a row as it was inserted: "+
			"a later UPDATE can be lost, and a DELETE does not stop the message",
			g.who(), all, j.o.Table).about(g.Role)
	}
	if clean {
		c.ok("writers", "only relays, operators and the owner may change rows of %s", j.o.Table)
	}
}

// role is the grantee, as SQL writes it.
func (g grantFacts) role() string {
	if g.Role == "" {
		return "PUBLIC"
	}
	return quote(g.Role)
}

func (g grantFacts) who() string {
	switch {
	case g.Role == "":
		return "every role (PUBLIC)"
	case g.Inherited != "":
		return fmt.Sprintf("role %q, as a member of %s,", g.Role, g.Inherited)
	case len(g.Members) > 0:
		return fmt.Sprintf("role %q, with its members %s,", g.Role, strings.Join(g.Members, ", "))
	}
	return fmt.Sprintf("role %q", g.Role)
}
