package main

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// A DBA gets the same grants from --print-sql as setup gives, with or without names.
func TestPrintedGrantsAreSufficientAndMinimal(t *testing.T) {
	t.Parallel()
	env, conn := withTables(t)
	for _, named := range []bool{true, false} {
		relay, app := newRole(t, conn, "", "LOGIN REPLICATION"), newRole(t, conn, "", "LOGIN")
		args, names := []string{"setup", "--print-sql"}, strings.NewReplacer(`"cdc_relay"`, relay, `"application"`, app)
		if named {
			args = append(args, "--relay-role", relay, "--app-role", app)
		}
		_, text, _ := strings.Cut(cdcRelay(t, env, args...).stdout, "-- The relay.")
		comment := "(?:-- )"
		if named {
			comment = ""
		}
		statements := regexp.MustCompile(`(?m)^`+comment+`((?:GRANT|ALTER ROLE) [^;]*;)`).FindAllStringSubmatch(text, -1)
		if len(statements) < 8 {
			t.Fatalf("%d statements in %s", len(statements), text)
		}
		for _, statement := range statements {
			execute(t, conn, names.Replace(statement[1]))
		}
		wantGrants(t, asRole(t, env, conn, relay), app)
		for role, granted := range map[string]string{
			relay: "outbox DELETE, outbox SELECT, outbox UPDATE, outbox_dead_letter INSERT, outbox_dead_letter SELECT, outbox_migrations SELECT, outbox_migrations UPDATE, outbox_relay DELETE, outbox_relay INSERT, outbox_relay SELECT, outbox_relay UPDATE",
			app:   "",
		} {
			wantValue(t, conn, granted, `SELECT coalesce(string_agg(table_name || ' ' || privilege_type, ', ' ORDER BY table_name, privilege_type), '')
				FROM information_schema.role_table_grants WHERE grantee = $1`, role)
		}
		for privilege, columns := range map[string][]string{"INSERT": schema.Insert(), "SELECT": {"id", "message_id"}} {
			slices.Sort(columns)
			if got := query[[]string](t, conn, `SELECT array_agg(column_name::text ORDER BY column_name::text COLLATE "C")
				FROM information_schema.role_column_grants WHERE grantee = $1 AND privilege_type = $2`, app, privilege); !slices.Equal(got, columns) {
				t.Errorf("the application may %s %v, want %v", privilege, got, columns)
			}
		}
		wantOutput(t, cdcRelay(t, env, "setup", "--relay-role", relay, "--app-role", app), "role "+relay+" may run a relay of public.outbox: nothing to do",
			"role "+app+" may insert into public.outbox, and read id and message_id: nothing to do")
	}
}

func TestSetupCreatesFunctionsAndGrantsThem(t *testing.T) {
	env, conn := fresh(t)
	env["CDC_RELAY_MODE"] = "poll"
	app := newRole(t, conn, "", "LOGIN")
	may := func() bool {
		t.Helper()
		return query[bool](t, conn, "SELECT bool_and(has_function_privilege($1, oid, 'EXECUTE')) FROM pg_proc WHERE proname ~ '^outbox_'", app)
	}
	made := "created functions outbox_enqueue, outbox_celery, outbox_await and outbox_cancel of public.outbox\n"
	wantOutput(t, cdcRelay(t, env, "setup", "--functions"), made)
	wantOutput(t, cdcRelay(t, env, "setup", "--functions"), "functions of public.outbox: exist, nothing to do\n")
	if may() {
		t.Error("a role may call them without a grant")
	}
	wantOutput(t, cdcRelay(t, env, "setup", "--functions", "--app-role", app), "nothing to do", "role "+app+" may call the functions")
	asApp := connectAs(t, conn, app)
	execute(t, conn, "GRANT USAGE ON SCHEMA public TO "+app)
	id := query[string](t, asApp, "SELECT outbox_enqueue('r', '1', available_at => now() + interval '1 hour')::text")
	if !may() || !query[bool](t, asApp, "SELECT outbox_cancel($1::text::uuid)", id) {
		t.Error("the role may not call them")
	}
	wantDenied(t, asApp, "INSERT INTO outbox (routing_key, payload) VALUES ('r', '1')")
	wantOutput(t, cdcRelay(t, env, "setup", "--functions"), "exist, nothing to do\n") // and keeps all grants
	printed := cdcRelay(t, environment{}, "setup", "--print-sql", "--functions", "--app-role", "shop_app")
	wantOutput(t, printed, `CREATE OR REPLACE FUNCTION "public"."outbox_enqueue"(`, `TO "shop_app";`)
	execute(t, conn, "GRANT USAGE ON SCHEMA public TO "+app+"; GRANT SELECT ON outbox_migrations TO "+app)
	r := cdcRelay(t, asRole(t, env, conn, app), "setup", "--functions")
	wantError(t, r, "hint: export CDC_RELAY_DATABASE_URL=postgres://OWNER@127.0.0.1:")
	execute(t, conn, "DROP FUNCTION outbox_await")
	wantOutput(t, cdcRelay(t, env, "setup", "--functions"), made)
	wantOutput(t, cdcRelay(t, env, "teardown", "--tables", "--yes"), "dropped tables")
	wantValue(t, conn, 0, "SELECT count(*) FROM pg_proc WHERE proname ~ '^outbox_'")
}

// A new table in place of one that was renamed or moved would strand its messages. The hint brings them back.
func TestATableThatMovedIsNotCreatedAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ breaks, table, mode, hint string }{
		"renamed":                 {breaks: "ALTER TABLE outbox RENAME TO messages", hint: `ALTER TABLE "public"."messages" RENAME TO "outbox";`},
		"renamed, without stream": {breaks: "ALTER TABLE outbox RENAME TO messages", mode: "poll", hint: `ALTER TABLE "public"."messages" RENAME TO "outbox";`},
		"in another schema":       {breaks: "CREATE SCHEMA other; ALTER TABLE outbox SET SCHEMA other", hint: `ALTER TABLE "other"."outbox" SET SCHEMA "public";`},
		"in another schema, without stream": {
			breaks: "CREATE SCHEMA other; ALTER TABLE outbox SET SCHEMA other", mode: "poll", hint: `ALTER TABLE "other"."outbox" SET SCHEMA "public";`,
		},
		"all tables in another schema": {
			breaks: "CREATE SCHEMA other; ALTER TABLE outbox SET SCHEMA other; ALTER TABLE outbox_dead_letter SET SCHEMA other; ALTER TABLE outbox_migrations SET SCHEMA other",
			hint:   `ALTER TABLE "other"."outbox" SET SCHEMA "public";`,
		},
		"both":                 {breaks: "CREATE SCHEMA other; ALTER TABLE outbox RENAME TO messages; ALTER TABLE messages SET SCHEMA other", hint: `ALTER TABLE "other"."messages" SET SCHEMA "public"; ALTER TABLE "public"."messages" RENAME TO "outbox";`},
		"a renamed schema":     {breaks: "ALTER SCHEMA apps RENAME TO shop", table: "apps.outbox", hint: `--table shop.outbox`},
		"a mistake in --table": {breaks: "SELECT 1", table: "public.outbxo", hint: "--table public.outbox"},
		"dead letters renamed": {breaks: "ALTER TABLE outbox_dead_letter RENAME TO dead", hint: `ALTER TABLE "public"."dead" RENAME TO "outbox_dead_letter";`},
		"dead letters in another schema": {
			breaks: "CREATE SCHEMA other; ALTER TABLE outbox_dead_letter SET SCHEMA other", mode: "poll", hint: `ALTER TABLE "other"."outbox_dead_letter" SET SCHEMA "public";`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, conn := fresh(t)
			env["CDC_RELAY_LOG_FORMAT"] = "text"
			if test.mode != "" {
				env["CDC_RELAY_MODE"] = test.mode
			}
			before := maps.Clone(env)
			if strings.HasPrefix(test.table, "apps") {
				before["CDC_RELAY_TABLE"] = test.table
			}
			want(t, cdcRelay(t, before, "setup"), exitDone)
			execute(t, conn, test.breaks)
			if test.table != "" {
				env["CDC_RELAY_TABLE"] = test.table
			}
			tables := "SELECT string_agg(oid::regclass::text, ' ' ORDER BY oid) FROM pg_class WHERE relkind = 'r' AND relname ~ 'outb|dead|messages'"
			found := query[string](t, conn, tables)
			for _, args := range [][]string{{"setup"}, {"run", "--setup", "--publisher", "stdout"}} {
				wantError(t, cdcRelay(t, env, args...), test.hint)
			}
			wantValue(t, conn, found, tables)
			if sql := strings.HasPrefix(test.hint, "ALTER"); sql && !strings.HasPrefix(name, "all") {
				execute(t, conn, test.hint)
				wantOutput(t, cdcRelay(t, env, "setup"), "version 1, nothing to do")
			}
		})
	}
}

// A second outbox has its own publication, and a dropped table comes back.
func TestTablesThatDidNotMoveAreCreated(t *testing.T) {
	t.Parallel()
	env, conn := withTables(t)
	second := []string{"setup", "--table", "billing.outbox", "--slot", services.Name(t), "--publication", "billing"}
	wantOutput(t, cdcRelay(t, env, second...), "created tables billing.outbox")
	execute(t, conn, "CREATE TABLE copy AS SELECT * FROM outbox; DROP TABLE outbox")
	wantOutput(t, cdcRelay(t, env, "setup"), "created table public.outbox again", "added table public.outbox to publication")
	wantOutput(t, cdcRelay(t, env, second...), "version 1, nothing to do")
}

// Publications that others need, such as one of all tables, publish updates and deletes of ours, too.
func TestAPublicationOfAllTablesStopsNothing(t *testing.T) {
	t.Parallel()
	for name, publication := range map[string]string{
		"all tables":          "FOR ALL TABLES",
		"tables of a schema":  "FOR TABLES IN SCHEMA public",
		"all, by their roots": "FOR ALL TABLES WITH (publish_via_partition_root)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, conn := fresh(t)
			execute(t, conn, "CREATE PUBLICATION everything "+publication)
			want(t, cdcRelay(t, env, "setup", "--keep-published", "24h", "--functions"), exitDone)
			execute(t, conn, "UPDATE outbox_migrations SET version = version; INSERT INTO outbox (routing_key, payload) VALUES ('r', '1')")
			relay := start(t, env, "run", "--publisher", "stdout", "--keep-published", "24h", "--log-format", "json")
			await.Until(t, "the message is in the history", func() bool { return query[int](t, conn, "SELECT count(*) FROM outbox_published") == 1 })
			relay.stopsWell(t)
			execute(t, conn, "DELETE FROM outbox_published; INSERT INTO outbox_p SELECT (json_populate_record(NULL::outbox_p, '{\"id\": 1, \"created_at\": \"2020-01-01Z\", "+
				"\"published_at\": \"2020-01-01Z\", \"message_id\": \"00000000-0000-0000-0000-000000000000\", \"attempts\": 0, \"schema_version\": 1, \"routing_key\": \"r\"}')).*")
			execute(t, conn, "SELECT outbox_rotate(interval '1 h')")
			wantValue(t, conn, 0, "SELECT count(*) FROM outbox_published")
			want(t, cdcRelay(t, env, "teardown", "--tables", "--yes"), exitDone)
		})
	}
}

// The log names the publication, and what Postgres says about it.
func TestAPublicationThatForbidsDeletesIsNamed(t *testing.T) {
	t.Parallel()
	env, conn := withTables(t, "--mode", "poll")
	env["CDC_RELAY_MODE"] = "poll"
	execute(t, conn, "CREATE PUBLICATION other FOR TABLE outbox (routing_key); INSERT INTO outbox (routing_key, payload) VALUES ('r', '1')")
	relay := start(t, env, "run", "--publisher", "stdout", "--log-format", "json", "--poll-interval", "50ms")
	relay.await(t, "Column list used by the publication does not cover the replica identity")
	execute(t, conn, "ALTER PUBLICATION other SET (publish = 'insert')")
	await.Until(t, "the message has left", func() bool { return query[int](t, conn, "SELECT count(*) FROM outbox") == 0 })
	relay.stopsWell(t)
	wantValue(t, conn, 0, "SELECT count(*) FROM outbox_dead_letter")
}
