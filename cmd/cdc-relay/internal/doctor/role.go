package doctor

import (
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/grants"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// roleSQL reads the settings of the role from the catalog if the session is a login of another role ($1). Otherwise a
// login can act as another role, by ALTER ROLE … SET role. Its connections use the rights and settings of the login.
const roleSQL = `
WITH me AS (SELECT * FROM pg_roles WHERE rolname = current_user),
login AS (SELECT * FROM pg_roles WHERE rolname = CASE WHEN $1 THEN current_user ELSE session_user END),
own AS (SELECT DISTINCT ON (1) split_part(s, '=', 1) AS name, substr(s, strpos(s, '=') + 1) AS value
        FROM me, pg_db_role_setting d, unnest(d.setconfig) s
        WHERE $1 AND d.setrole IN (0, me.oid)
          AND d.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
        ORDER BY 1, d.setrole = 0, d.setdatabase = 0),
timeouts AS (SELECT s.name, coalesce(own.value, s.reset_val) AS value FROM pg_settings s LEFT JOIN own USING (name)
             WHERE s.name IN ('statement_timeout', 'idle_session_timeout'))
SELECT jsonb_build_object('name', me.rolname, 'user', r.rolname, 'superuser', me.rolsuper,
  'streams', ` + slot.MayReplicateSQL + `, 'CreatesSlots', (SELECT ` + slot.MayReplicateSQL + ` FROM me r),
  'SeesOthers', pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), 'connections', r.rolconnlimit,
  'timeouts', (SELECT jsonb_object_agg(name, (extract(epoch FROM
                 CASE WHEN value ~ '^[0-9]+$' THEN value || 'ms' ELSE value END::interval) * 1000)::bigint)
               FROM timeouts),
  'ReadOnly', (SELECT value::boolean FROM own WHERE name = 'default_transaction_read_only'),
  'login', r.rolcanlogin, 'connect', has_database_privilege(r.oid, current_database(), 'CONNECT'),
  'expired', r.rolvaliduntil <= clock_timestamp())
FROM me, login r`

type roleFacts struct {
	Name, User   string // the role that acts, and the one that logs in
	Superuser    bool
	Streams      bool // User may open replication connections
	CreatesSlots bool // Name may create slots
	SeesOthers   bool // it may see the activity of other roles
	Connections  int  // its CONNECTION LIMIT; negative: none
	// Timeouts are those of a new session of the role, in milliseconds; 0: none.
	Timeouts map[string]int64
	// ReadOnly is the role's default_transaction_read_only, if an administrator examines it; nil: it has none.
	ReadOnly *bool
	// Login, Connect and Expired: it may log in, connect to the database, and its password is no longer valid.
	Login, Connect, Expired bool
}

// judgeReadOnly: roles and databases can have it set, and some services set it when the disk is full. The relay's
// sessions turn it off.
func (j *databaseJudge) judgeReadOnly(c chart) {
	on := j.f.readOnly.value == "on"
	if own := j.role.ReadOnly; own != nil {
		on = *own
	}
	if on && !j.server.InRecovery {
		c.warn("read_only", lines(sql("SET default_transaction_read_only = off"),
			j.alterRole("IN DATABASE %s SET default_transaction_read_only = off", quote(j.server.Database))),
			"default_transaction_read_only is on for role %q: the relay turns it off for its sessions, but an "+
				"application with this role cannot insert. Some services set it when the disk is almost full",
			j.role.Name)
	}
}

func (j *databaseJudge) alterRole(format string, args ...any) steps {
	return sql("ALTER ROLE %s "+format, append([]any{quote(j.role.User)}, args...)...)
}

// judgeLogin checks what a login of the relay's role would need. Its own session has it already.
func (j *databaseJudge) judgeLogin(c chart) {
	if j.f.role.err != nil || !j.o.Administrator {
		return
	}
	if !j.role.Login {
		c.wrong("login", j.alterRole("LOGIN"), "role %q may not log in", j.role.Name)
	}
	if !j.role.Connect {
		c.wrong("login", j.grant(grants.Connect(j.server.Database)),
			"role %q may not connect to database %q", j.role.Name, j.server.Database)
	}
	if j.role.Expired {
		c.wrong("login", j.alterRole("VALID UNTIL 'infinity'"),
			"the password of role %q has expired: it cannot log in with a password", j.role.Name)
	}
}

// A relay opens up to neededConnections connections. As a rule, its statements take less than shortStatements, and its
// sessions are idle for less than shortIdle.
const (
	neededConnections = 7
	shortStatements   = time.Second
	shortIdle         = time.Minute
)

// judgeRoleLimits checks the settings of the role that the relay does not change.
func (j *databaseJudge) judgeRoleLimits(c chart) {
	role := j.role
	if j.f.role.err != nil {
		return // another check reports it
	}
	if role.Connections >= 0 && role.Connections < neededConnections && !role.Superuser {
		c.warn("connections", j.alterRole("CONNECTION LIMIT -1"),
			"role %q may open %d connections: a relay needs up to %d", role.User, role.Connections, neededConnections)
	}
	timeout := func(name string) (time.Duration, steps) {
		return time.Duration(role.Timeouts[name]) * time.Millisecond,
			j.alterRole("IN DATABASE %s SET %s = 0", quote(j.server.Database), name)
	}
	if limit, reset := timeout("statement_timeout"); limit > 0 && limit < shortStatements {
		c.warn("statement_timeout", reset,
			"statement_timeout is %s for role %q: the server may cancel statements of the relay when it is busy",
			limit, role.User)
	}
	if limit, reset := timeout("idle_session_timeout"); limit > 0 && limit < shortIdle {
		c.warn("idle_session_timeout", reset,
			"idle_session_timeout is %s for role %q: the server ends sessions of the relay, and its sweeps fail",
			limit, role.User)
	}
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
