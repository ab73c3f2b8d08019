package main

import (
	"go/token"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// planter returns a role that may only create objects in the schema of the outbox, and its session. Its function makes
// it a superuser if a superuser runs it.
func planter(t *testing.T, conn *pgx.Conn) (role string, as *pgx.Conn) {
	t.Helper()
	role = newRole(t, conn, "", "LOGIN")
	execute(t, conn, "GRANT CREATE, USAGE ON SCHEMA public TO "+role)
	as = connectAs(t, conn, role)
	execute(t, as, "CREATE FUNCTION public.grab() RETURNS int LANGUAGE plpgsql AS $$ BEGIN "+
		"IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN EXECUTE 'ALTER ROLE "+role+" SUPERUSER'; END IF; RETURN 1; END $$")
	execute(t, as, "CREATE FUNCTION public.grabbing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM public.grab(); RETURN NEW; END $$")
	return role, as
}

// Nobody becomes a superuser because a superuser sets up, updates, runs or removes an outbox.
func TestObjectsThatAnotherRolePlantedRunNoCode(t *testing.T) {
	t.Parallel()
	versions := func(more string) string { return "CREATE TABLE outbox_migrations (version int4 NOT NULL" + more + ")" }
	const trigger = "; CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON outbox_migrations FOR EACH ROW EXECUTE FUNCTION grabbing()"
	for name, planted := range map[string]string{
		"versions with a trigger":    versions("") + trigger,
		"versions with a row":        versions("") + "; INSERT INTO outbox_migrations VALUES (0)" + trigger,
		"versions with a default":    versions(", more int DEFAULT grab()"),
		"versions with a check":      versions(", CHECK (grab() = version)"),
		"versions with a rule":       versions("") + "; CREATE RULE r AS ON INSERT TO outbox_migrations DO ALSO SELECT grab()",
		"versions of a domain":       "CREATE DOMAIN d AS int4 CHECK (grab() = 1); CREATE TABLE outbox_migrations (version d)",
		"versions in a view":         "CREATE VIEW outbox_migrations AS SELECT grab() - 1 AS version",
		"versions that are recent":   "CREATE VIEW outbox_migrations AS SELECT grab() AS version",
		"the outbox":                 "CREATE VIEW outbox AS SELECT grab() AS id",
		"dead letters":               "CREATE TABLE outbox_dead_letter (id int DEFAULT grab())",
		"a history":                  "CREATE TABLE outbox_published (id int DEFAULT grab())",
		"the partition of the rest":  "CREATE TABLE outbox_p (id int DEFAULT grab())",
		"the partition of a day":     "CREATE TABLE outbox_p20991231 (id int DEFAULT grab())",
		"the sequence":               "CREATE SEQUENCE outbox_id_seq",
		"a type":                     "CREATE DOMAIN outbox AS int CHECK (grab() = 1)",
		"a whole outbox of triggers": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, conn := fresh(t)
			role, as := planter(t, conn)
			if planted == "" {
				execute(t, conn, "GRANT CREATE ON DATABASE "+conn.Config().Database+" TO "+role)
				want(t, cdcRelay(t, asRole(t, env, conn, role), "setup", "--tables-only"), exitDone)
				execute(t, conn, "REVOKE CREATE ON DATABASE "+conn.Config().Database+" FROM "+role)
				planted = "CREATE TRIGGER t BEFORE DELETE OR UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION grabbing(); INSERT INTO outbox (routing_key, payload) VALUES ('r', '1')"
			}
			execute(t, as, planted)
			env["CDC_RELAY_LOG_FORMAT"] = "text"
			for _, args := range [][]string{
				{"setup"},
				{"setup", "--tables-only"},
				{"run", "--setup", "--publisher", "stdout"},
				{"run", "--publisher", "stdout", "--mode", "poll"},
				{"teardown", "--tables", "--yes"},
				{"adopt", "--from", "outbox", "--set", "routing_key=id"},
				{"setup", "--print-sql"},
				{"setup", "--tables-only", "--print-sql"},
				{"list"},
				{"stats"},
			} {
				r := cdcRelay(t, env, args...)
				says, reads := r.stderr, args[0] == "list" || args[0] == "stats"
				if r.code == exitDone && !reads {
					says = psqlSays(t, env, r.stdout)
				}
				missing := reads || args[0] == "run" && (strings.Contains(says, "does not exist") || strings.Contains(says, "is not a table"))
				if !strings.Contains(says, "role "+role) && !missing {
					t.Errorf("%v: got %s", args, says)
				}
				if query[bool](t, conn, "SELECT rolsuper FROM pg_roles WHERE rolname = $1", role) {
					t.Fatalf("%v made the role a superuser", args)
				}
			}
		})
	}
}

// psqlSays runs a script. After an error, psql goes on if the script lets it.
func psqlSays(t *testing.T, env environment, script string) string {
	t.Helper()
	psql := exec.CommandContext(t.Context(), "psql", "-X", "-q", "-d", env["CDC_RELAY_DATABASE_URL"])
	psql.Stdin = strings.NewReader(script)
	out, _ := psql.CombinedOutput() //nolint:errcheck // the caller looks for the error of the script
	return string(out)
}

// An owner that is no superuser sets up, and a relay of another role works. A superuser names that owner.
func TestAnOwnerOfItsOwnSetsUp(t *testing.T) {
	t.Parallel()
	env, conn := fresh(t)
	owner, relay := newRole(t, conn, "", "LOGIN REPLICATION"), newRole(t, conn, "", "LOGIN REPLICATION")
	execute(t, conn, "GRANT CREATE, USAGE ON SCHEMA public TO "+owner+"; GRANT CREATE, CONNECT ON DATABASE "+conn.Config().Database+" TO "+owner)
	owns := asRole(t, env, conn, owner)
	for range 2 {
		wantOutput(t, cdcRelay(t, owns, "setup", "--relay-role", relay), "may run a relay of public.outbox")
	}
	execute(t, conn, "INSERT INTO outbox (routing_key, payload) VALUES ('r', '1')")
	for _, env := range []environment{asRole(t, env, conn, relay), owns} {
		running := start(t, env, "run", "--publisher", "stdout", "--log-format", "json")
		running.await(t, `"event":"streaming"`)
		await.Until(t, "the message is published", func() bool { return query[int](t, conn, "SELECT count(*) FROM outbox") == 0 }, running.stdout.String)
		running.stopsWell(t)
	}
	for _, args := range [][]string{{"setup"}, {"run", "--publisher", "stdout", "--log-format", "text"}} {
		wantError(t, cdcRelay(t, env, args...), "belongs to role "+owner, "add --owner "+owner)
	}
	named := maps.Clone(env)
	named["CDC_RELAY_OWNER"] = owner
	wantOutput(t, cdcRelay(t, named, "setup"), "nothing to do")
	wantOutput(t, cdcRelay(t, named, "setup", "--tables-only"), "nothing to do")
	wantOutput(t, cdcRelay(t, named, "teardown", "--tables", "--yes"), "dropped tables")
}

// What hangs on our tables runs as the relay, and as the role that deletes or resends a message.
func TestCodeOfAnotherRoleOnOurTablesDoesNotRun(t *testing.T) {
	t.Parallel()
	env, conn := withTables(t, "--mode", "poll")
	maps.Copy(env, environment{"CDC_RELAY_MODE": "poll", "CDC_RELAY_LOG_FORMAT": "text"})
	role, as := planter(t, conn)
	execute(t, conn, "INSERT INTO outbox (routing_key, payload) VALUES ('r', '1'), ('r', '2')")
	want(t, cdcRelay(t, env, "delete", "2", "--dead-letter", "--yes"), exitDone)
	execute(t, conn, "GRANT TRIGGER, REFERENCES ON outbox TO "+role)
	refused := func(says, fix string, commands ...[]string) {
		t.Helper()
		for _, args := range commands {
			wantError(t, cdcRelay(t, env, args...), says, fix)
			if query[bool](t, conn, "SELECT rolsuper FROM pg_roles WHERE rolname = $1", role) {
				t.Fatalf("%v made the role a superuser", args)
			}
		}
	}
	execute(t, as, "CREATE TRIGGER t BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION grabbing()")
	refused("trigger t of public.outbox uses function public.grabbing() of role "+role, `DROP TRIGGER "t" ON "public"."outbox";`,
		[]string{"resend", "2", "--yes"}, []string{"run", "--publisher", "stdout"})
	execute(t, conn, "ALTER TABLE outbox DISABLE TRIGGER t")
	wantOutput(t, cdcRelay(t, env, "setup"), "nothing to do")
	execute(t, as, "CREATE TABLE mine (id bigint REFERENCES outbox ON DELETE CASCADE); INSERT INTO mine VALUES (1)")
	execute(t, as, "CREATE TRIGGER t AFTER DELETE ON mine FOR EACH ROW EXECUTE FUNCTION grabbing()")
	execute(t, conn, "DROP TRIGGER t ON outbox")
	refused("constraint mine_id_fkey of public.mine uses table public.mine of role "+role, `ALTER TABLE "public"."mine" DROP CONSTRAINT "mine_id_fkey";`,
		[]string{"delete", "1", "--yes"}, []string{"drain", "--publisher", "stdout"}, []string{"setup"})
	wantOutput(t, cdcRelay(t, env, "delete", "2", "--yes", "--owner", role), "deleted 1") // on purpose
}

// Postgres prefers a function in another schema if its parameters match better. Without parameters, none matches better
// than that of pg_catalog. unnest of several arrays and functions with words between the arguments are part of the grammar.
func TestSQLNamesTheSchemaOfFunctions(t *testing.T) {
	conn := tabletest.Connect(t, services.Database(t))
	var names []string
	must(t, conn.QueryRow(t.Context(), `SELECT array_agg(DISTINCT proname) FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace
		AND proname !~ '^(text|name|char|date|time|timestamp|interval|numeric|bit|version|int[248]|substring|extract|overlay|position|json|jsonb|bool)$'`).Scan(&names))
	call := regexp.MustCompile(`(?:^|[^\w.$-])(` + strings.Join(names, "|") + `)\(([^)*]|\*[^)]|$)`)
	severalArrays := regexp.MustCompile(`unnest\(\$\d::\w+\[\], `)
	files := token.NewFileSet()
	for name, file := range sources(t, files) {
		if !slices.Contains([]string{
			"store", "internal/slot", "internal/pgdial", "replication", "outbox", "relay",
			"cmd/cdc-relay", "cmd/cdc-relay/internal/operator", "cmd/cdc-relay/internal/demo",
		}, strings.TrimPrefix(filepath.Dir(name), "../../")) {
			continue
		}
		for line, text := range literals(t, files, file) {
			for _, found := range call.FindAllString(severalArrays.ReplaceAllString(text, ""), -1) {
				printed := strings.Contains(text, "COALESCE(hashtextextended((ordering_key COLLATE") // by the server
				if sqlWords.MatchString(text) && !printed {
					t.Errorf("%s:%d: %q without pg_catalog", name, line, found)
				}
			}
		}
	}
}

// Everything from setup to teardown, as a superuser: what a trap runs, it runs with all rights.
func TestCommandsOfASuperuserRunNobodyElsesFunctions(t *testing.T) {
	t.Parallel()
	env, conn := fresh(t)
	tabletest.PlantTraps(t, conn)
	execute(t, conn, `SET search_path = pg_catalog, public`)
	execute(t, conn, `CREATE TABLE public.events (id bigserial PRIMARY KEY, topic text, body text)`)
	execute(t, conn, `INSERT INTO events (topic, body) VALUES ('a', '1'), ('a', '2')`)
	const path = "&search_path=evil,public,pg_catalog" // worse than the usual one
	env["CDC_RELAY_DATABASE_URL"] += path
	env["CDC_RELAY_PUBLISHER"] = "stdout"
	printed := cdcRelay(t, env, "setup", "--functions", "--keep-published", "24h", "--print-sql")
	if psql, err := exec.LookPath("psql"); err == nil {
		cmd := exec.CommandContext(t.Context(), psql, "-X", "-v", "ON_ERROR_STOP=1", "-d", strings.TrimSuffix(env["CDC_RELAY_DATABASE_URL"], path))
		cmd.Stdin = strings.NewReader(printed.stdout)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("psql: %v\n%s", err, out)
		}
	}
	run := func(all ...string) {
		for _, args := range all {
			if r := cdcRelay(t, env, strings.Fields(args)...); r.code != exitDone {
				t.Errorf("%s: %+v", args, r)
			}
		}
	}
	const filters = " --routing-key r.# --header task=a.*,x=1 --exchange e --ordering-key k --reason nack --older-than 1h --newer-than 1d"
	run(
		"setup --tables-only",
		"setup --functions --keep-published 24h --app-role postgres",
		"setup",
		"adopt --from events --set routing_key=topic --set payload=body --waiting all",
		"check --fix --yes --keep-published 24h --app-role postgres",
		"stats --exact",
		"list --state blocked --payload"+filters,
		"keys --blocked",
		"explain 1",
		"delete --state scheduled --yes"+filters,
	)
	running := start(t, env, "run", "--keep-published", "24h", "--exchange", "none")
	execute(t, conn, `SELECT outbox_enqueue('orders', '{"n": 1}', ordering_key => 'k'), outbox_celery('task')`)
	execute(t, conn, `INSERT INTO events (topic, body) VALUES ('b', '3')`)
	await.Until(t, "five rows are published", func() bool { return query[bool](t, conn, `SELECT count(*) = 5 FROM outbox_published`) })
	running.stopsWell(t)
	console, at := startConsole(t, env)
	for _, page := range []string{"/", "/waiting", "/keys", "/dead-letters", "/published", "/message?id=1", "/tail", "/check"} {
		wantPage(t, at+page, http.StatusOK)
	}
	console.stopsWell(t)
	run(
		"list --state published"+filters,
		"explain "+query[string](t, conn, "SELECT message_id::text FROM outbox_published LIMIT 1"),
		"resend --state published --all --yes",
		"drain",
		"list"+filters,
		"adopt --undo",
		"teardown --yes --tables",
	)
	tabletest.Trapped(t, conn)
}

// sqlWords tell SQL from other texts.
var sqlWords = regexp.MustCompile(`^\w+\(|\b(SELECT|INSERT|UPDATE|DELETE|FROM|WHERE|AND|OR|CASE|coalesce|IN|ANY|AS)\b|::|[rsd]\.[a-z_]+\b|\$\d|%s`)
