package main

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// Covers the roles suggested by setup --print-sql and docs/getting-started.md, for the relay and for the application.
func TestSuggestedGrantsAreSufficientAndMinimal(t *testing.T) {
	env, conn := fresh(t)
	want(t, cdcRelay(t, env, "setup"), exitDone)
	printed := cdcRelay(t, env, "setup", "--print-sql")
	_, suggested, _ := strings.Cut(printed.stdout, "-- Suggested roles.")
	for page, text := range map[string]string{"setup --print-sql": suggested, "docs/getting-started.md": blocks(t, "getting-started.md", "sql")[1]} {
		t.Run(page, func(t *testing.T) {
			relay, app := services.Name(t), services.Name(t)
			statements := regexp.MustCompile(`(?m)^(?:-- )?((?:CREATE ROLE|GRANT) [^;]*;)`).FindAllStringSubmatch(text, -1)
			if len(statements) < 7 {
				t.Fatalf("%d statements in %s", len(statements), text)
			}
			t.Cleanup(func() {
				for _, role := range []string{relay, app} {
					if _, err := conn.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
						t.Error(err)
					}
				}
			})
			names := strings.NewReplacer("cdc_relay", relay, "shop_app", app, "TO application", "TO "+app)
			if !strings.Contains(text, "shop_app") {
				execute(t, conn, "CREATE ROLE "+app)
			}
			for _, statement := range statements {
				execute(t, conn, names.Replace(statement[1]))
			}
			execute(t, conn, "ALTER ROLE "+relay+" PASSWORD 's3cr3t'")
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
			columns := slices.Sorted(slices.Values(outbox.InsertColumns()))
			if got := query[[]string](t, conn, `SELECT array_agg(column_name::text ORDER BY column_name::text COLLATE "C")
				FROM information_schema.role_column_grants WHERE grantee = $1 AND privilege_type = 'INSERT'`, app); !slices.Equal(got, columns) {
				t.Errorf("the application may INSERT into %v, want %v", got, columns)
			}
		})
	}
}

// wantGrants runs check as the relay's role, and expects no problem with the grants.
func wantGrants(t *testing.T, env environment, app string) {
	t.Helper()
	r := cdcRelay(t, env, "check", "--publisher", "stdout", "--format", "json", "--app-role", app)
	var report checkReport
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatal(err)
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

func TestSetupCreatesFunctionsAndGrantsThem(t *testing.T) {
	env, conn := fresh(t)
	env["CDC_RELAY_MODE"] = "poll"
	app := services.Name(t)
	execute(t, conn, "CREATE ROLE "+app)
	t.Cleanup(func() {
		if _, err := conn.Exec(context.Background(), "DROP OWNED BY "+app+"; DROP ROLE "+app); err != nil {
			t.Error(err)
		}
	})
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
	wantOutput(t, cdcRelay(t, env, "setup", "--functions", "--app-role", app), made, `role "`+app+`" may call them`)
	if !may() {
		t.Error("the role may not call them")
	}
	wantOutput(t, cdcRelay(t, env, "setup", "--functions"), "exist, nothing to do\n") // and keeps all grants
	printed := cdcRelay(t, environment{}, "setup", "--print-sql", "--functions", "--app-role", "shop_app")
	wantOutput(t, printed, `CREATE OR REPLACE FUNCTION "public"."outbox_enqueue"(`, `TO "shop_app";`)
	execute(t, conn, "ALTER ROLE "+app+" LOGIN PASSWORD 's3cr3t'; GRANT USAGE ON SCHEMA public TO "+app+"; GRANT SELECT ON outbox_migrations TO "+app)
	r := cdcRelay(t, asRole(t, env, conn, app), "setup", "--functions")
	if want(t, r, exitFailed); !strings.Contains(r.stderr, "hint: export CDC_RELAY_DATABASE_URL=postgres://OWNER@127.0.0.1:") {
		t.Errorf("got %s", r.stderr)
	}
	execute(t, conn, "DROP FUNCTION outbox_await")
	wantOutput(t, cdcRelay(t, env, "setup", "--functions"), made)
	wantOutput(t, cdcRelay(t, env, "teardown", "--tables", "--yes"), "dropped tables")
	if n := query[int](t, conn, "SELECT count(*) FROM pg_proc WHERE proname ~ '^outbox_'"); n != 0 {
		t.Errorf("%d functions are left", n)
	}
}

// The SQL of the pages on functions and consumers runs as written.
func TestSQLOfTheFunctionAndConsumerPagesRuns(t *testing.T) {
	env, conn := fresh(t)
	want(t, cdcRelay(t, env, "setup", "--mode", "poll", "--functions"), exitDone)
	for _, page := range []string{"functions.md", "consumers.md"} {
		for _, sql := range blocks(t, page, "sql") {
			execute(t, conn, strings.ReplaceAll(sql, "$1", "gen_random_uuid()"))
		}
	}
	if n := query[int](t, conn, "SELECT count(*) FROM outbox"); n != 4 {
		t.Errorf("%d messages, want 4", n)
	}
}

// setup --app-role does not need --functions, and a second run changes nothing.
func TestSetupLetsTheApplicationInsert(t *testing.T) {
	env, conn := fresh(t)
	env["CDC_RELAY_MODE"] = "poll"
	role := services.Name(t) + "-Ä"
	execute(t, conn, `CREATE ROLE "`+role+`"`)
	t.Cleanup(func() {
		if _, err := conn.Exec(context.Background(), `DROP OWNED BY "`+role+`"; DROP ROLE "`+role+`"`); err != nil {
			t.Error(err)
		}
	})
	args := []string{"setup", "--app-role", role, "--table", `"My Schema"."Out.Box"`}
	wantOutput(t, cdcRelay(t, env, args...), `role "`+role+`" may insert into "My Schema"."Out.Box"`)
	wantOutput(t, cdcRelay(t, env, args...), "may insert into", "nothing to do")
	execute(t, conn, `SET ROLE "`+role+`"`)
	execute(t, conn, `INSERT INTO "My Schema"."Out.Box" (routing_key, payload) VALUES ('r', '1')`)
	if _, err := conn.Exec(t.Context(), `INSERT INTO "My Schema"."Out.Box" (routing_key, payload, attempts) VALUES ('r', '1', 3)`); err == nil {
		t.Error("it may set attempts")
	}
	execute(t, conn, `RESET ROLE`)
	r := cdcRelay(t, env, "setup", "--app-role", "nobody_"+services.Name(t))
	if r.code != exitFailed || !strings.Contains(r.stderr, "does not exist") || !strings.Contains(r.stderr, "hint: CREATE ROLE nobody_") {
		t.Errorf("%+v", r)
	}
}
