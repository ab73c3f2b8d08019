package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// newRole creates a role with a name that ends like this, without line ends if the server rejects them (Postgres 19).
func newRole(t *testing.T, conn *pgx.Conn, suffix, attributes string) string {
	t.Helper()
	unique := services.Name(t)
	if query[int](t, conn, `SELECT current_setting('server_version_num')::int`) >= 190000 {
		suffix = strings.ReplaceAll(suffix, "\n", "")
	}
	name := "r_" + unique[len(unique)-16:] + suffix
	quoted := outbox.QuoteIdentifier(name)
	execute(t, conn, "CREATE ROLE "+quoted+" "+attributes+" PASSWORD 's3cr3t'")
	t.Cleanup(func() {
		if _, err := conn.Exec(context.Background(), "RESET ROLE; DROP OWNED BY "+quoted+"; DROP ROLE "+quoted); err != nil {
			t.Error(err)
		}
	})
	return name
}

func connectAs(t *testing.T, conn *pgx.Conn, role string) *pgx.Conn {
	t.Helper()
	return tabletest.Connect(t, loginAs(conn, role))
}

func wantDenied(t *testing.T, conn *pgx.Conn, statement string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), statement); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("%s: %v", statement, err)
	}
}

// listed writes a role as an element of --app-role.
func listed(role string) string { return `"` + strings.ReplaceAll(role, `"`, `""`) + `"` }

// The grants of setup are enough for a relay and for an ORM, in each mode, and they are no more.
func TestSetupGrantsWhatRelayAndApplicationNeed(t *testing.T) {
	for name, test := range map[string]struct {
		suffix string
		table  outbox.Table
		args   []string // of setup and run
	}{
		"stream":  {"", outbox.Table{Schema: "public", Name: "outbox"}, nil},
		"hostile": {"\"ä',;--\n" + `\`, outbox.Table{Schema: `My "Schema`, Name: "Out.Box"}, []string{"--mode", "poll", "--keep-published", "24h", "--dead-letter-retention", "720h"}},
		"history": {" $1", outbox.Table{Schema: "billing", Name: "outbox"}, []string{"--keep-published", "24h"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, conn := fresh(t)
			execute(t, conn, "REVOKE ALL ON SCHEMA public FROM PUBLIC; "+
				"DO $$ BEGIN EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database()); END $$")
			relay, app, second := newRole(t, conn, test.suffix, "LOGIN"), newRole(t, conn, test.suffix, "LOGIN"), newRole(t, conn, "", "LOGIN")
			env["CDC_RELAY_TABLE"] = test.table.Printed()
			setup := append([]string{"setup", "--relay-role", relay, "--app-role", listed(app), "--app-role", second}, test.args...)
			r := cdcRelay(t, env, setup...)
			wantOutput(t, r, "may run a relay of ", "may insert into ", ", and read id and message_id")
			streams := !slices.Contains(test.args, "poll")
			if streams != strings.Contains(r.stdout, "may replicate") {
				t.Errorf("got %s", r.stdout)
			}
			if again := cdcRelay(t, env, append(setup, "--json")...); !strings.Contains(again.stdout, `"done": []`) {
				t.Errorf("a second run changed something: %s", again.stdout)
			}

			asApp := connectAs(t, conn, app)
			const insert = " (routing_key, payload) VALUES ('r', '1') RETURNING "
			execute(t, asApp, "INSERT INTO "+test.table.SQL()+insert+"id; SELECT lastval()")
			messageID := query[string](t, asApp, "WITH i AS (INSERT INTO "+test.table.SQL()+insert+"id, message_id) SELECT message_id::text FROM i")
			for _, statement := range []string{
				"SELECT payload FROM %s", "SELECT routing_key FROM %s", "UPDATE %s SET routing_key = 'x'", "DELETE FROM %s", "TRUNCATE %s", "SELECT setval(pg_get_serial_sequence('%s', 'id'), 1)",
				"INSERT INTO %s (routing_key, payload, attempts) VALUES ('r', '1', 3)", "INSERT INTO %s (routing_key, payload) VALUES ('r', '1') RETURNING payload",
			} {
				wantDenied(t, asApp, fmt.Sprintf(statement, test.table.SQL()))
			}
			wantDenied(t, asApp, "SELECT id FROM "+test.table.DeadLetter().SQL())

			login := asRole(t, env, conn, relay)
			wantGrants(t, login, listed(app)+","+second, test.args...)
			running := start(t, login, append([]string{"run", "--publisher", "stdout", "--poll-interval", "10ms"}, test.args...)...)
			await.Until(t, "the relay publishes both", func() bool {
				return query[int](t, conn, "SELECT count(*) FROM "+test.table.SQL()) == 0
			}, running.stdout.String)
			if !strings.Contains(running.stdout.String(), messageID) {
				t.Errorf("the relay did not publish %s: %s", messageID, running.stdout)
			}
			if slices.Contains(test.args, "--keep-published") && query[int](t, conn, "SELECT count(*) FROM "+test.table.Published().SQL()) != 2 {
				t.Error("the history lacks a message")
			}
			running.stopsWell(t)
		})
	}
}

func loginAs(conn *pgx.Conn, role string) string {
	config, quote := conn.Config(), strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	return fmt.Sprintf("host=%s port=%d dbname=%s user='%s' password=s3cr3t sslmode=disable", config.Host, config.Port, config.Database, quote.Replace(role))
}

// The stricter grants break RETURNING, and check says which ORMs fail.
func TestAnApplicationMayOnlyInsert(t *testing.T) {
	t.Parallel()
	env, conn := fresh(t)
	env["CDC_RELAY_MODE"] = "poll"
	app := newRole(t, conn, "", "LOGIN")
	setup := []string{"setup", "--app-role", app, "--app-insert-only"}
	wantOutput(t, cdcRelay(t, env, setup...), "role "+app+" may insert into public.outbox\n")
	asApp := connectAs(t, conn, app)
	execute(t, asApp, "INSERT INTO outbox (routing_key, payload) VALUES ('r', '1')")
	wantDenied(t, asApp, "INSERT INTO outbox (routing_key, payload) VALUES ('r', '1') RETURNING id")
	fails := func(want bool) {
		t.Helper()
		r := cdcRelay(t, env, "check", "--all", "--publisher", "stdout", "--app-role", app)
		if strings.Contains(r.stdout, "INSERT … RETURNING fails. SQLAlchemy, Django") != want {
			t.Errorf("got %s", r.stdout)
		}
	}
	fails(true)
	// What it has besides is reported, and stays.
	execute(t, conn, "GRANT SELECT (id, message_id) ON outbox TO "+app)
	wantOutput(t, cdcRelay(t, env, setup...), "nothing to do", `REVOKE SELECT (id, message_id) ON "public"."outbox" FROM "`+app+`";`)
	execute(t, conn, "GRANT DELETE ON outbox TO "+app)
	wantOutput(t, cdcRelay(t, env, "setup", "--app-role", app), "may DELETE besides INSERT", `REVOKE DELETE ON "public"."outbox" FROM "`+app+`";`)
	execute(t, asApp, "DELETE FROM outbox WHERE id = (SELECT min(id) FROM outbox)")
	fails(false)
	execute(t, conn, "GRANT ALL ON ALL TABLES IN SCHEMA public TO "+app+"; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO "+app+"; GRANT TRIGGER ON outbox_dead_letter TO PUBLIC; GRANT REFERENCES (id) ON outbox TO "+app)
	for range 2 { // the second time, it narrows INSERT
		r := cdcRelay(t, env, "setup", "--app-role", app)
		statements := regexp.MustCompile(`(?m)^  (REVOKE|GRANT) .*;$`).FindAllString(r.stdout, -1)
		if len(statements) == 0 {
			t.Fatalf("got %s%s", r.stdout, r.stderr)
		}
		execute(t, conn, strings.Join(statements, ""))
	}
	wantValue(t, conn, "", `SELECT coalesce(string_agg(DISTINCT concat_ws(' ', c.relname, p), ', '), '') FROM pg_class c,
		unnest('{UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) p WHERE c.relname ~ '^outbox' AND c.relkind IN ('r', 'S') AND has_table_privilege($1::name, c.oid, p)`, app)
	execute(t, conn, "GRANT SELECT (id, message_id), DELETE ON outbox TO "+app)
	execute(t, conn, "ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
	wantOutput(t, cdcRelay(t, env, "setup", "--app-role", app), "may not INSERT through row-level security", "CREATE POLICY")
	execute(t, conn, "ALTER TABLE outbox DISABLE ROW LEVEL SECURITY")
	var report setupView
	r := cdcRelay(t, env, "setup", "--app-role", app, "--json")
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || len(report.Warnings) != 1 || len(report.Done) != 0 {
		t.Errorf("%v: %s", err, r.stdout)
	}
}

// Setup by the owner of the database does what it can, and says who must do what is left.
func TestSetupSaysWhatItMayNotDo(t *testing.T) {
	t.Parallel()
	env, conn := fresh(t)
	owner, relay := newRole(t, conn, "", "LOGIN"), newRole(t, conn, "", "LOGIN")
	execute(t, conn, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I OWNER TO "+owner+"', current_database()); END $$; ALTER SCHEMA public OWNER TO "+owner)
	t.Cleanup(func() {
		_, err := conn.Exec(context.Background(), "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I OWNER TO CURRENT_USER', current_database()); END $$; "+
			"ALTER SCHEMA public OWNER TO CURRENT_USER")
		if err != nil {
			t.Error(err)
		}
	})
	owns := asRole(t, env, conn, owner)
	missing := "no-" + relay
	wantError(t, cdcRelay(t, owns, "setup", "--app-role", missing), `role "`+missing+`" of --app-role does not exist`,
		`hint: CREATE ROLE "`+missing+`" LOGIN PASSWORD '...';  -- as a superuser, or a role with CREATEROLE; then run this again`)
	wantError(t, cdcRelay(t, owns, "setup", "--relay-role", missing), "of --relay-role does not exist",
		`hint: CREATE ROLE "`+missing+`" LOGIN REPLICATION PASSWORD '...';  -- as a superuser; then run this again`)
	wantError(t, cdcRelay(t, owns, "setup", "--relay-role", missing, "--mode", "poll"), "does not exist",
		`hint: CREATE ROLE "`+missing+`" LOGIN PASSWORD '...';`)
	wantError(t, cdcRelay(t, owns, "setup"), "role "+owner+" may not replicate",
		"hint: ALTER ROLE "+owner+" REPLICATION;  -- as a superuser")
	if query[bool](t, conn, "SELECT to_regclass('outbox') IS NOT NULL OR EXISTS (SELECT FROM pg_publication)") {
		t.Error("something was created")
	}

	execute(t, conn, "ALTER ROLE "+owner+" REPLICATION")
	r := cdcRelay(t, owns, "setup", "--relay-role", relay)
	wantError(t, r, "role "+relay+" may not replicate, and only a superuser can change that",
		"hint: ALTER ROLE "+relay+" REPLICATION;  -- as a superuser")
	wantTexts(t, r.stdout, `GRANT pg_read_all_stats TO "`+relay+`";  -- as a superuser`)
	execute(t, conn, "ALTER ROLE "+relay+" REPLICATION; GRANT pg_read_all_stats TO "+relay)
	wantOutput(t, cdcRelay(t, owns, "setup", "--relay-role", relay), "may run a relay of public.outbox: nothing to do")
	wantGrants(t, asRole(t, env, conn, relay), owner)

	// Who may use the tables, but not grant that, gets a warning of the server, and not an error.
	execute(t, conn, "REVOKE SELECT ON outbox_migrations FROM "+relay)
	other := newRole(t, conn, "", "LOGIN REPLICATION")
	execute(t, conn, "GRANT SELECT ON outbox_migrations TO "+other+"; GRANT USAGE ON SCHEMA public TO "+other)
	wantError(t, cdcRelay(t, asRole(t, env, conn, other), "setup", "--relay-role", relay),
		"GRANT SELECT, UPDATE ON \"public\".\"outbox_migrations\" TO "+relay+": permission denied", "hint: export CDC_RELAY_DATABASE_URL=postgres://OWNER@")
}

// The names of roles are as in the catalog.
func TestNamesOfRolesAreParsed(t *testing.T) {
	for text, wanted := range map[string][]string{
		"shop_app":                     {"shop_app"},
		"Shop App,b":                   {"Shop App", "b"},
		`"a,b","c""d",e`:               {"a,b", `c"d`, "e"},
		"\"two\nlines\"":               {"two\nlines"},
		"PUBLIC":                       {"PUBLIC"}, // as "PUBLIC" in SQL, a role
		"":                             nil,
		"a,":                           nil,
		`"a`:                           nil,
		"two\nlines":                   nil,
		"public":                       nil,
		"a,none":                       nil,
		strings.Repeat("ä", 31) + "aa": nil,
	} {
		got, err := roleNames(text)
		if !slices.Equal(got, wanted) || (err == nil) != (wanted != nil) {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
}

// wantGrants runs check as the relay's role, and expects no problem with the grants.
func wantGrants(t *testing.T, env environment, apps string, args ...string) {
	t.Helper()
	args = slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == "--dead-letter-retention" || arg == "720h" })
	r := cdcRelay(t, env, append([]string{"check", "--publisher", "stdout", "--json", "--app-role", apps}, args...)...)
	var report checkReport
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	looked := 0
	for _, f := range report.Findings {
		if f.Area == doctor.Grants || f.Area == doctor.Tables || f.Name == "replication" {
			looked++
			if f.Level != doctor.OK {
				t.Errorf("%s: %s", f.Message, f.Fix)
			}
		}
	}
	if looked < 7 {
		t.Errorf("only %d findings: %s%s", looked, r.stdout, r.stderr)
	}
}

// Relays that start together on an empty database create everything once, and all are ready.
func TestRelaysSetUpAnEmptyDatabaseTogether(t *testing.T) {
	t.Parallel()
	env, conn := fresh(t)
	maps.Copy(env, environment{"CDC_RELAY_SETUP": "true", "CDC_RELAY_KEEP_PUBLISHED": "24h", "CDC_RELAY_PUBLISHER": "stdout"})
	var relays []*command
	for range 3 {
		relays = append(relays, start(t, env, "run", "--log-format", "json"))
	}
	for _, relay := range relays {
		address := relay.httpURL(t)
		await.Until(t, "the relay is ready", func() bool { return strings.HasPrefix(page(t, address+"/readyz"), "200 ready") })
	}
	execute(t, conn, "INSERT INTO outbox (routing_key, payload) VALUES ('r', '1')")
	await.Until(t, "a relay publishes the message", func() bool {
		return query[int](t, conn, "SELECT count(*) FROM outbox_published") == 1 && query[int](t, conn, "SELECT count(*) FROM outbox") == 0
	})
	for _, relay := range relays {
		relay.stopsWell(t)
	}
}

// A container often starts before its database.
func TestRunSetupWaitsForPostgres(t *testing.T) {
	env, conn := fresh(t)
	proxy := services.NewProxy(t, conn.PgConn().Conn().RemoteAddr().String())
	proxy.Refuse()
	login := maps.Clone(env)
	address, err := url.Parse(env["CDC_RELAY_DATABASE_URL"])
	must(t, err)
	address.Host = proxy.Addr()
	login["CDC_RELAY_DATABASE_URL"] = address.String()
	relay := start(t, login, "run", "--setup", "--publisher", "stdout", "--log-format", "json")
	relay.await(t, `"event":"postgres_down"`)
	proxy.Accept()
	relay.await(t, `"event":"setup_changed"`)
	relay.await(t, `"event":"streaming"`)
	relay.stopsWell(t)
}

// Older tables are updated, newer ones stay.
func TestRunSetupNeverDowngrades(t *testing.T) {
	env, conn := withTables(t)
	execute(t, conn, "UPDATE outbox_migrations SET version = 99")
	r := cdcRelay(t, env, "run", "--setup", "--publisher", "stdout", "--log-format", "json")
	wantError(t, r, "install the newer cdc-relay")
	wantValue(t, conn, 99, "SELECT version FROM outbox_migrations")
	execute(t, conn, "DELETE FROM outbox_migrations; DROP TABLE outbox, outbox_dead_letter; INSERT INTO outbox_migrations VALUES (0)")
	relay := start(t, env, "run", "--setup", "--publisher", "stdout", "--log-format", "json")
	relay.await(t, "created tables public.outbox and public.outbox_dead_letter (version 1)")
	relay.stopsWell(t)
}
