package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/schema"
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
			relay: "outbox DELETE, outbox SELECT, outbox UPDATE, outbox_dead_letter INSERT, outbox_dead_letter SELECT, outbox_migrations SELECT",
			app:   "",
		} {
			if got := query[string](t, conn, `SELECT coalesce(string_agg(table_name || ' ' || privilege_type, ', ' ORDER BY table_name, privilege_type), '')
				FROM information_schema.role_table_grants WHERE grantee = $1`, role); got != granted {
				t.Errorf("%s: granted is %s, needed is %s", role, got, granted)
			}
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
	if !may() {
		t.Error("the role may not call them")
	}
	wantOutput(t, cdcRelay(t, env, "setup", "--functions"), "exist, nothing to do\n") // and keeps all grants
	printed := cdcRelay(t, environment{}, "setup", "--print-sql", "--functions", "--app-role", "shop_app")
	wantOutput(t, printed, `CREATE OR REPLACE FUNCTION "public"."outbox_enqueue"(`, `TO "shop_app";`)
	execute(t, conn, "GRANT USAGE ON SCHEMA public TO "+app+"; GRANT SELECT ON outbox_migrations TO "+app)
	r := cdcRelay(t, asRole(t, env, conn, app), "setup", "--functions")
	wantError(t, r, "hint: export CDC_RELAY_DATABASE_URL=postgres://OWNER@127.0.0.1:")
	execute(t, conn, "DROP FUNCTION outbox_await")
	wantOutput(t, cdcRelay(t, env, "setup", "--functions"), made)
	wantOutput(t, cdcRelay(t, env, "teardown", "--tables", "--yes"), "dropped tables")
	if n := query[int](t, conn, "SELECT count(*) FROM pg_proc WHERE proname ~ '^outbox_'"); n != 0 {
		t.Errorf("%d functions are left", n)
	}
}

// The SQL of the pages on functions and consumers runs as written.
func TestSQLOfTheFunctionAndConsumerPagesRuns(t *testing.T) {
	_, conn := withTables(t, "--mode", "poll", "--functions")
	for _, page := range []string{"functions.md", "consumers.md"} {
		for _, sql := range blocks(t, page, "sql") {
			execute(t, conn, strings.ReplaceAll(sql, "$1", "gen_random_uuid()"))
		}
	}
	if n := query[int](t, conn, "SELECT count(*) FROM outbox"); n != 4 {
		t.Errorf("%d messages, want 4", n)
	}
}
