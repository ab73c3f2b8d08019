package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func (j *databaseJudge) judgeApp(c *chart) {
	app, name, role := j.f.app.value, j.o.AppRole, quote(j.o.AppRole)
	_, there := j.f.tables.value.Tables[j.o.Table.Name]
	switch {
	case j.f.app.err != nil:
		c.unknown("application", j.f.app.err)
		return
	case !app.Exists:
		c.wrong("application",
			lines(sql("CREATE ROLE %s LOGIN PASSWORD '...'", role), j.grantUsage(role), j.grantInsert(role)),
			"role %q does not exist", name)
		return
	case !there:
		return // reported already
	}
	var wrong []string
	var grants fix
	add := func(is bool, says string, grant fix) {
		if is {
			wrong, grants = append(wrong, says), lines(grants, grant)
		}
	}
	add(!app.Connect, "connect to the database",
		sql("GRANT CONNECT ON DATABASE %s TO %s", quote(j.server.Database), role).safe())
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
		c.wrong("application", grants, "role %q may not %s", name, strings.Join(wrong, ", nor "))
	case !app.inserts():
		c.ok("application", "role %q may call %s, and not INSERT",
			name, outbox.Table{Schema: j.o.Table.Schema, Name: j.o.Table.Name + "_enqueue"})
	default:
		j.judgeAppGrants(c)
		j.judgeReturning(c)
	}
}

// judgeAppGrants reports what the application may do besides the INSERT of messages.
func (j *databaseJudge) judgeAppGrants(c *chart) {
	app, name := j.f.app.value, j.o.AppRole
	var own []string
	for _, column := range outbox.RelayColumns() {
		if slices.Contains(app.Columns, column) {
			own = append(own, column)
		}
	}
	switch {
	case app.Owner:
		c.ok("application", "role %q may INSERT; as the owner or a superuser it may do anything with the table", name)
	case len(app.More) > 0:
		c.warn("application", j.revoke(app.More, j.o.AppRole),
			"role %q may %s besides INSERT, and needs only INSERT", name, strings.Join(app.More, ", "))
	case len(own) > 0:
		c.warn("application", j.narrow(), "role %q may INSERT into %s, which are the relay's own: "+
			"it can take the ids of others and delay their messages. Grant the other columns instead",
			name, strings.Join(own, ", "))
	case !app.Login:
		c.ok("application", "role %q may INSERT, and so may its members: it cannot log in itself", name)
	case len(app.Reads) > 0:
		c.ok("application", "role %q may INSERT and read %s", name, strings.Join(app.Reads, ", "))
	default:
		c.ok("application", "role %q may INSERT, and nothing else", name)
	}
}

// narrow replaces INSERT on more columns by INSERT on those of a message, for each role from which the application has
// it.
func (j *databaseJudge) narrow() fix {
	var all fix
	for _, g := range j.f.grants.value {
		if g.App && slices.Contains(g.Privileges, "INSERT") {
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
		if g.App && len(given) > 0 {
			all = lines(all, sql("REVOKE %s ON %s FROM %s", strings.Join(given, ", "), j.o.Table.Printed(), g.role()))
		}
	}
	if all == nil {
		return sql("REVOKE %s ON %s FROM %s", strings.Join(privileges, ", "), j.o.Table.Printed(), quote(role))
	}
	return all
}

// judgeReturning: ORMs send INSERT … RETURNING id, or call nextval before.
func (j *databaseJudge) judgeReturning(c *chart) {
	app, name, role := j.f.app.value, j.o.AppRole, quote(j.o.AppRole)
	sequence, readsID := j.f.tables.value.Sequence, slices.Contains(app.Reads, "id")
	if readsID && app.Sequence {
		c.ok("returning",
			"INSERT … RETURNING id works for role %q; a client that calls nextval also needs INSERT (id)", name)
		return
	}
	var grants fix
	if !readsID {
		grants = sql("GRANT SELECT (id) ON %s TO %s", j.o.Table.Printed(), role)
	}
	if !app.Sequence && sequence != (outbox.Table{}) {
		grants = lines(grants, sql("GRANT USAGE ON SEQUENCE %s TO %s", sequence, role))
	}
	c.ok("returning", "role %q lacks a grant for the generated id. "+
		"For an ORM that asks for it (INSERT … RETURNING, nextval), map message_id as its key, or: %s",
		name, strings.Join(grants.lines(), " "))
}

// inserts: a grant on the columns of every message is enough.
func (a appFacts) inserts() bool {
	return slices.Contains(a.Columns, "routing_key") &&
		(slices.Contains(a.Columns, "payload") || slices.Contains(a.Columns, "payload_bytes"))
}

func (j *databaseJudge) grantUsage(role string) fix {
	return sql("GRANT USAGE ON SCHEMA %s TO %s", quote(j.o.Table.Schema), role).safe()
}

// grantInsert grants what an application needs.
func (j *databaseJudge) grantInsert(role string) fix {
	return sql("GRANT INSERT (%s) ON %s TO %s",
		strings.Join(outbox.InsertColumns(), ", "), j.o.Table.Printed(), role).safe()
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
		if len(changes) == 0 || g.Trusted || g.App && j.o.AppRole != "" {
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
