package doctor

import (
	"slices"
	"strings"

	"github.com/jackc/pgerrcode"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/grants"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// roleSQL: a login can act as another role, by ALTER ROLE … SET role. Its connections use the rights of the login. An
// administrator ($1) examines only one role.
const roleSQL = `
WITH me AS (SELECT * FROM pg_roles WHERE rolname = current_user),
login AS (SELECT * FROM pg_roles WHERE rolname = CASE WHEN $1 THEN current_user ELSE session_user END)
SELECT jsonb_build_object('name', me.rolname, 'user', r.rolname, 'superuser', me.rolsuper,
  'streams', ` + slot.MayReplicateSQL + `, 'CreatesSlots', (SELECT ` + slot.MayReplicateSQL + ` FROM me r),
  'SeesOthers', pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'))
FROM me, login r`

type roleFacts struct {
	Name, User   string // the role that acts, and the one that logs in
	Superuser    bool
	Streams      bool // User may open replication connections
	CreatesSlots bool // Name may create slots
	SeesOthers   bool // it may see the activity of other roles
}

// judgeReplication combines the role's attributes in the catalog with the result of a replication connection.
func (j *databaseJudge) judgeReplication(c chart) {
	role, err := j.role, j.f.replication
	switch {
	case j.o.Operator || c.unknown("replication", j.f.role.err):
	case !role.Streams:
		c.wrong("replication", j.service.replication(role.User), "role %q may not replicate", role.User)
	case err == nil && !role.CreatesSlots:
		c.warn("replication", j.service.replication(role.Name),
			"role %q may replicate, but its sessions act as role %q, "+
				"which may not: the relay streams, and cannot create the slot again", role.User, role.Name)
	case err == nil:
		c.ok("replication", "role %q may replicate, and a replication connection was opened", role.User)
	case pgcode.Of(err) == pgerrcode.InsufficientPrivilege:
		c.wrong("replication", j.service.replication(role.User), "role %q may not replicate: %s", role.User, err)
	case pgcode.Of(err) == pgerrcode.TooManyConnections:
		c.wrong("replication", remark("-- see max_wal_senders, max_connections, and the limit of the role: "+
			"SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user;"),
			"no replication connection is free: %s", err)
	case j.f.pooler != "":
		c.wrong("replication", j.directly(), "the pooler rejects replication connections: %s", err)
	default:
		fix := fixOf(err)
		if slices.Equal(fix, seeLog()) {
			fix = remark("# pg_hba.conf has to let the role in for this database, " +
				"and all proxies on the way have to pass replication connections on")
		}
		c.wrong("replication", fix,
			"role %q may replicate, but no replication connection could be opened: %s", role.User, err)
	}
}

// judgeGrants checks the privileges of the relay's role and of the application's.
func (j *databaseJudge) judgeGrants(c chart) {
	t, name := j.tables, j.role.Name
	if j.f.tables.err == nil && t.SchemaExists && !j.o.Operator {
		if !t.SchemaUsage {
			c.wrong("schema", j.grant(grants.Usage(j.o.Table.Schema)),
				"role %q may not use schema %s", name, j.o.Table.Schema)
		}
		for _, need := range schema.Needs(j.o.Table) {
			if table, there := t.Tables[need.Table.Name]; there {
				j.judgePrivileges(c.about(need.Table.String()), need, table)
			}
		}
		need := schema.ReportNeed(j.o.Table)
		table, there := t.Tables[need.Table.Name]
		lacks := func(privilege string) bool { return !slices.Contains(table.Privileges, privilege) }
		if there && slices.ContainsFunc(need.Privileges, lacks) {
			c.about(need.Table.String()).warn("relay", j.grant(grants.Report(j.o.Table)),
				"role %q may not write to table %s: other programs do not see what this relay does", name, need.Table)
		}
		j.judgeHistoryGrants(c)
		if j.role.Superuser {
			c.ok("relay", "role %q is a superuser and may do everything; --relay-role NAME examines another role", name)
		}
		switch {
		case t.Sequence == (outbox.Table{}):
		case t.SequenceGranted:
			c.ok("sequence", "role %q may SELECT %s", name, t.Sequence)
		default:
			c.wrong("sequence", j.grant(grants.Sequence(t.Sequence)),
				"role %q may not SELECT sequence %s", name, t.Sequence)
		}
	}
	for _, app := range j.f.apps {
		j.judgeApp(c.about(app.value.Name), app)
	}
	if j.there {
		j.judgeWriters(c)
	}
}

// grant gives the relay's role a privilege.
func (j *databaseJudge) grant(g grants.Grant) steps { return grant(g, j.grantee()) }

func grant(g grants.Grant, role string) steps { return sql("%s", g.To(role)).safe() }

// judgePrivileges checks what the relay's role may do with a table.
func (j *databaseJudge) judgePrivileges(c chart, need schema.Need, table tableFacts) {
	var denied []string
	for _, privilege := range need.Privileges {
		if !slices.Contains(table.Privileges, privilege) {
			denied = append(denied, privilege)
		}
	}
	switch all := strings.Join(denied, ", "); {
	case len(denied) > 0:
		c.wrong("relay", sql("GRANT %s ON %s TO %s", all, need.Table.Printed(), j.grantee()).safe(),
			"role %q may not %s on table %s", j.role.Name, all, need.Table)
	case table.Hidden:
		c.wrong("relay", lines(sql("ALTER TABLE %s DISABLE ROW LEVEL SECURITY", need.Table.Printed()),
			sql("ALTER ROLE %s BYPASSRLS", j.grantee()).orElse()), // that holds for every table of the cluster
			"row-level security of table %s hides rows from role %q", need.Table, j.role.Name)
	default:
		c.ok("relay", "role %q may %s on %s", j.role.Name, strings.Join(need.Privileges, ", "), need.Table)
	}
}
