package main

import (
	"maps"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func hintOf(r result) string {
	_, hint, _ := strings.Cut(r.stderr, "hint: ")
	if _, after, found := strings.Cut(hint, "; else: "); found { // another test is in another database
		hint = after
	}
	return strings.TrimSpace(hint)
}

// cure does what a hint says, as the administrator of env: SQL, commands of cdc-relay, or an export, after which the
// caller has the returned environment. A remark is for a person.
func cure(t *testing.T, env environment, conn *pgx.Conn, asked environment, hint string) environment {
	t.Helper()
	admin, err := url.Parse(env["CDC_RELAY_DATABASE_URL"])
	must(t, err)
	hint = strings.ReplaceAll(hint, "OWNER@", admin.User.String()+"@")
	command, _, _ := strings.Cut(hint, "  # ")
	switch {
	case strings.HasPrefix(hint, "# "):
	case strings.HasPrefix(command, "export CDC_RELAY_DATABASE_URL="):
		asked = maps.Clone(asked)
		asked["CDC_RELAY_DATABASE_URL"] = strings.Trim(strings.TrimPrefix(command, "export CDC_RELAY_DATABASE_URL="), "'")
	case strings.HasPrefix(command, "cdc-relay "):
		for one := range strings.SplitSeq(command, "; ") {
			words, err := exec.CommandContext(t.Context(), "sh", "-c", "printf '%s\\n' "+one).Output()
			if err != nil {
				t.Fatalf("%s: %v", one, err)
			}
			r := cdcRelay(t, env, strings.Split(strings.TrimSpace(string(words)), "\n")[1:]...)
			if r.code != exitDone { // it may have a hint of its own
				cure(t, env, conn, env, hintOf(r))
			}
		}
	default:
		if _, err := conn.PgConn().Exec(t.Context(), hint).ReadAll(); err != nil {
			t.Fatalf("%s: %v", hint, err)
		}
	}
	return asked
}

// Each hint cures what it stands under, at once, and gives no more than docs/security.md. The command that failed has
// created nothing.
func TestHintsCureTheirErrors(t *testing.T) {
	t.Parallel()
	const streaming, polling, application = "LOGIN /* streams */", "LOGIN /* polls */", "LOGIN /* inserts */" // what the role is for
	for name, test := range map[string]struct {
		role    string // its attributes; "": the command runs as a superuser
		breaks  string // SQL; ROLE and DATABASE are their names
		command string
		says    string
		hint    string // its begin
	}{
		"no dead letters":   {"", "DROP TABLE outbox_dead_letter", "drain", "outbox_dead_letter does not exist", "cdc-relay setup"},
		"no tables":         {"", "DROP TABLE outbox, outbox_dead_letter", "stats", "outbox does not exist", "cdc-relay setup  # if DATABASE is the right database"},
		"a view":            {"", "ALTER TABLE outbox RENAME TO o; CREATE VIEW outbox AS SELECT 1", "drain", "is not a table", "cdc-relay setup"},
		"a dropped column":  {"", "ALTER TABLE outbox DROP headers", "drain", "no column headers", "ALTER TABLE"},
		"a renamed column":  {"", "ALTER TABLE outbox RENAME headers TO old_headers", "drain", "no column headers", `ALTER TABLE "public"."outbox" RENAME COLUMN "old_headers" TO "headers";`},
		"for a reader":      {"", "ALTER TABLE outbox_dead_letter RENAME last_error TO last_error2", "list --state dead", "no column last_error", "ALTER TABLE"},
		"for setup":         {"", "ALTER TABLE outbox RENAME headers TO headers_old", "setup", "no column headers", "ALTER TABLE"},
		"a renamed table":   {"", "ALTER TABLE outbox RENAME TO box", "setup --tables-only", "does not exist", "ALTER TABLE"},
		"no history":        {"", "SELECT 1", "drain --keep-published 1h", "outbox_published does not exist", "cdc-relay setup --keep-published 1h"},
		"row security":      {polling, "GRANT SELECT, UPDATE, DELETE ON outbox TO ROLE; GRANT SELECT, INSERT ON outbox_dead_letter TO ROLE; GRANT SELECT ON outbox_id_seq, outbox_migrations TO ROLE; ALTER TABLE outbox ENABLE ROW LEVEL SECURITY", "drain", "row-level security", "ALTER TABLE"},
		"a hidden version":  {polling, "GRANT SELECT, UPDATE, DELETE ON outbox TO ROLE; GRANT SELECT, INSERT ON outbox_dead_letter TO ROLE; GRANT SELECT ON outbox_id_seq, outbox_migrations TO ROLE; ALTER TABLE outbox_migrations ENABLE ROW LEVEL SECURITY", "drain", "row-level security of table public.outbox_migrations", "ALTER TABLE public.outbox_migrations DISABLE"},
		"no login":          {"NOLOGIN", "SELECT 1", "stats", "not permitted to log in", "ALTER ROLE ROLE LOGIN;"},
		"no connection":     {"LOGIN CONNECTION LIMIT 0", "SELECT 1", "stats", "too many connections for role", "ALTER ROLE ROLE CONNECTION LIMIT"},
		"a full database":   {"LOGIN", "ALTER DATABASE DATABASE CONNECTION LIMIT 0", "stats", "too many connections for database", "ALTER DATABASE"},
		"no CONNECT":        {"LOGIN", "REVOKE CONNECT ON DATABASE DATABASE FROM PUBLIC", "stats", "permission denied for database", "GRANT CONNECT"},
		"messages left":     {"", "INSERT INTO outbox (routing_key, payload) VALUES ('k', '1')", "teardown --tables --yes", "has 1 message", "cdc-relay drain"},
		"a relay, CONNECT":  {polling, "REVOKE CONNECT ON DATABASE DATABASE FROM PUBLIC", "drain", "permission denied for database", "cdc-relay setup --database-url"},
		"a relay, polling":  {polling, "SELECT 1", "drain --keep-published 1h", "may not", "cdc-relay setup --database-url"},
		"a relay, streams":  {streaming, "SELECT 1", "run --mode auto", "may not", "cdc-relay setup --database-url"},
		"a relay, version":  {polling, "GRANT SELECT, UPDATE, DELETE ON outbox TO ROLE; GRANT SELECT, INSERT ON outbox_dead_letter TO ROLE; GRANT SELECT ON SEQUENCE outbox_id_seq TO ROLE", "drain", "may not SELECT on table public.outbox_migrations", "cdc-relay setup --database-url"},
		"for the demo":      {"", "DROP TABLE outbox, outbox_dead_letter, outbox_migrations", "demo", "table public.outbox is missing or not up to date", "cdc-relay setup"},
		"for list":          {"", "DROP TABLE outbox", "list", "table public.outbox does not exist in database DATABASE", "cdc-relay setup"},
		"to list history":   {"", "SELECT 1", "list --state published", "not kept", "cdc-relay setup --keep-published 1"},
		"to resend history": {"", "SELECT 1", "resend --state published --all --yes", "not kept", "cdc-relay setup --keep-published 1"},
		"it may not set up": {streaming, "DROP TABLE outbox, outbox_dead_letter, outbox_migrations", "run --setup --mode auto --keep-published 24h", "lacks privileges to create what is missing: ", "cdc-relay setup --database-url"},
		"an application":    {application, "GRANT INSERT ON outbox TO ROLE", "drain", "as the role of an application", "# use the relay's own role"},
		"it sets up":        {application, "DROP TABLE outbox, outbox_dead_letter, outbox_migrations", "setup --tables-only", "permission denied", "export CDC_RELAY_DATABASE_URL="},
		"it sets up slots":  {application, "SELECT 1", "setup --mode auto", "may not create publication", "export CDC_RELAY_DATABASE_URL="},
		"it adopts":         {application, "CREATE TABLE events (id int PRIMARY KEY, body text); GRANT INSERT ON outbox TO ROLE", "adopt --from events --set routing_key=id --set payload=body", "permission denied", "export CDC_RELAY_DATABASE_URL="},
		"it runs the demo":  {application, "GRANT INSERT ON outbox TO ROLE", "demo --count 1", "permission denied", "export CDC_RELAY_DATABASE_URL="},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, conn := withTables(t, "--mode", "poll")
			env["CDC_RELAY_MODE"], env["CDC_RELAY_PUBLISHER"], env["CDC_RELAY_LOG_FORMAT"] = "poll", "stdout", "text"
			execute(t, conn, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
			database, asked, role := outbox.Identifier(conn.Config().Database), env, ""
			if test.role != "" {
				role = newRole(t, conn, "", test.role)
				asked = asRole(t, env, conn, role)
			}
			fill := strings.NewReplacer("DATABASE DATABASE", "DATABASE "+database, "ROLE ROLE", "ROLE "+role, "TO ROLE", "TO "+role, "if DATABASE", "if "+database, "database DATABASE", "database "+database)
			execute(t, conn, fill.Replace(test.breaks), pgx.QueryExecModeSimpleProtocol)
			args := strings.Fields(test.command)
			if args[0] == "demo" {
				asked["CDC_RELAY_AMQP_URL"] = services.VHost(t)
			}
			tables := "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
			before := query[string](t, conn, tables)
			r := cdcRelay(t, asked, args...)
			want(t, r, exitFailed)
			wantValue(t, conn, before, tables)
			hint := hintOf(r)
			if !strings.Contains(r.stderr, fill.Replace(test.says)) || !strings.HasPrefix(hint, fill.Replace(test.hint)) {
				t.Fatalf("want %q with the hint %q: got %s", test.says, fill.Replace(test.hint), r.stderr)
			}
			then := cure(t, env, conn, asked, hint)
			wantNoMore(t, conn, role, test.role)
			switch {
			case strings.HasPrefix(hint, "# "), args[0] == "demo":
			case args[0] == "run":
				relay := start(t, then, append(args, "--log-format", "json")...)
				relay.await(t, `"event":"streaming"`)
				relay.stopsWell(t)
			default:
				if again := cdcRelay(t, then, args...); strings.Contains(again.stderr, test.says) || test.role == polling && again.code != exitDone {
					t.Errorf("after %s: %s", hint, again.stderr)
				}
			}
		})
	}
}

// wantNoMore expects that a role got no more than docs/security.md says of the relay, or of an application.
func wantNoMore(t *testing.T, conn *pgx.Conn, role, kind string) {
	t.Helper()
	if role == "" {
		return
	}
	more := func(what, sql string) {
		t.Helper()
		if query[bool](t, conn, "SELECT coalesce("+sql+", false) FROM pg_roles r WHERE rolname = $1", role) {
			t.Errorf("the role may %s", what)
		}
	}
	more("do everything", "rolsuper OR rolcreaterole OR rolcreatedb OR rolbypassrls")
	more("create objects", "has_schema_privilege(oid, 'public', 'CREATE') OR has_database_privilege(oid, current_database(), 'CREATE')")
	more("own or change tables", "has_table_privilege(oid, to_regclass('outbox')::oid, 'TRUNCATE, TRIGGER, REFERENCES')")
	more("be another role", "EXISTS (SELECT FROM pg_auth_members m WHERE m.member = r.oid AND m.roleid <> 'pg_read_all_stats'::regrole)")
	if !strings.Contains(kind, "streams") {
		more("replicate", "rolreplication")
	}
	if strings.Contains(kind, "inserts") {
		more("read or change messages", "has_table_privilege(oid, to_regclass('outbox')::oid, 'SELECT, UPDATE, DELETE')")
	}
}
