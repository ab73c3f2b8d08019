package main

import (
	"encoding/json"
	"maps"
	"os/exec"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// fresh returns an environment with its own database.
func fresh(t *testing.T) (environment, *pgx.Conn) {
	t.Helper()
	url := services.Database(t)
	name := services.Name(t) // slots belong to the server, not to the database
	return environment{
		"CDC_RELAY_DATABASE_URL": url,
		"CDC_RELAY_SLOT":         name,
		"CDC_RELAY_PUBLICATION":  name,
		"CDC_RELAY_HTTP_ADDR":    "127.0.0.1:0",
	}, tabletest.Connect(t, url)
}

// withTables is fresh after setup with these flags.
func withTables(t *testing.T, flags ...string) (environment, *pgx.Conn) {
	t.Helper()
	env, conn := fresh(t)
	want(t, cdcRelay(t, env, append([]string{"setup"}, flags...)...), exitDone)
	return env, conn
}

func query[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	var value T
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func wantValue[T comparable](t *testing.T, conn *pgx.Conn, want T, sql string, args ...any) {
	t.Helper()
	if got := query[T](t, conn, sql, args...); got != want {
		t.Errorf("%s: got %v, want %v", sql, got, want)
	}
}

func execute(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func TestSetupAndTeardown(t *testing.T) {
	t.Parallel()
	env, conn := fresh(t)
	slot := env["CDC_RELAY_SLOT"]
	wantObjects := func(objects string) {
		t.Helper()
		wantValue(t, conn, objects, `SELECT concat_ws(' ', (SELECT 'tables' WHERE to_regclass('outbox') IS NOT NULL),
			(SELECT 'publication' FROM pg_publication WHERE pubname = $1),
			(SELECT 'slot' FROM pg_replication_slots WHERE slot_name = $1))`, slot)
	}
	wantOutput(t, cdcRelay(t, env, "setup", "--tables-only"), "created tables public.outbox and public.outbox_dead_letter (version 1)\n")
	wantObjects("tables")
	wantOutput(t, cdcRelay(t, env, "setup"), "version 1, nothing to do", "\ncreated publication", "\ncreated slot "+slot+"\n", "\nwarning slot max_slot_wal_keep_size: ")
	wantObjects("tables publication slot")
	wantOutput(t, cdcRelay(t, env, "setup"), "version 1, nothing to do", "exist, nothing to do")
	wantOutput(t, cdcRelay(t, env, "setup", "--tables-only"), "version 1, nothing to do")

	for _, answer := range []string{"", "\n", "n\n", "nay", "teardown\n"} {
		wantError(t, withInput(t, env, answer, "teardown"), "not confirmed: nothing was dropped")
	}
	wantObjects("tables publication slot")
	execute(t, conn, "INSERT INTO outbox (routing_key, payload) VALUES ('k', '{}')")
	wantError(t, cdcRelay(t, env, "teardown", "--tables", "--yes"), "public.outbox has 1 message", "hint: ")
	wantObjects("tables publication slot")
	wantOutput(t, withInput(t, env, "y\n", "teardown"), "[y/N] ", "dropped slot "+slot, "dropped publication")
	wantObjects("tables")
	execute(t, conn, "DELETE FROM outbox")
	wantOutput(t, cdcRelay(t, env, "teardown", "--tables", "--yes"), "not there", "dropped tables public.outbox and public.outbox_dead_letter")
	wantObjects("")
	wantOutput(t, cdcRelay(t, env, "teardown", "--tables", "--yes"), "tables of public.outbox: not there")
}

func TestPrintedSetupRunsUnchangedInPsql(t *testing.T) {
	psql, err := exec.LookPath("psql")
	if err != nil {
		t.Skip("psql is not installed")
	}
	for _, mode := range []string{"auto", "poll"} {
		t.Run(mode, func(t *testing.T) {
			env, conn := fresh(t)
			env["CDC_RELAY_TABLE"] = `"My Schema"."Out.Box"`
			env["CDC_RELAY_MODE"] = mode
			relay, app := newRole(t, conn, " \"ä',;--\n\\", "LOGIN"), newRole(t, conn, " \"ä',;--\n\\", "LOGIN")
			roles := []string{"--functions", "--relay-role", relay, "--app-role", listed(app)}
			printed := cdcRelay(t, environment{"CDC_RELAY_SLOT": env["CDC_RELAY_SLOT"], "CDC_RELAY_PUBLICATION": env["CDC_RELAY_PUBLICATION"]},
				append([]string{"setup", "--print-sql", "--mode", mode, "--table", env["CDC_RELAY_TABLE"]}, roles...)...)
			wantOutput(t, printed, "\nGRANT SELECT, UPDATE, DELETE ON \"My Schema\".\"Out.Box\" TO "+outbox.QuoteIdentifier(relay)+";")
			cmd := exec.CommandContext(t.Context(), psql, "-X", "-d", env["CDC_RELAY_DATABASE_URL"])
			cmd.Stdin = strings.NewReader(printed.stdout)
			if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "ERROR") {
				t.Fatalf("psql: %v\n%s\n%s", err, out, printed.stdout)
			}
			r := cdcRelay(t, env, append([]string{"setup"}, roles...)...)
			wantOutput(t, r, "may run a relay of \"My Schema\".\"Out.Box\": nothing to do", "may call the functions of \"My Schema\".\"Out.Box\": nothing to do")
			if strings.Contains(r.stdout, "made") || strings.Contains(r.stdout, "created") {
				t.Errorf("setup still has something to do after the script: %s", r.stdout)
			}
		})
	}
}

func asRole(t *testing.T, env environment, conn *pgx.Conn, role string) environment {
	t.Helper()
	other := maps.Clone(env)
	other["CDC_RELAY_DATABASE_URL"] = loginAs(conn, role)
	return other
}

func TestUnknownDatabaseIsNamed(t *testing.T) {
	env, conn := fresh(t)
	config := conn.Config()
	env["CDC_RELAY_DATABASE_URL"] = strings.Replace(env["CDC_RELAY_DATABASE_URL"], "/"+config.Database, "/No_such", 1)
	wantError(t, cdcRelay(t, env, "setup"), `hint: CREATE DATABASE "No_such";`)
}

func TestLivenessFileThatCannotBeWritten(t *testing.T) {
	env, _ := fresh(t)
	r := cdcRelay(t, env, "run", "--publisher", "stdout", "--log-format", "text", "--liveness-file", t.TempDir()+"/no/such/folder")
	wantError(t, r, "--liveness-file", "no such file")
}

func TestTeardownByTheRelaysRoleNamesTheOwner(t *testing.T) {
	env, conn := withTables(t)
	r := cdcRelay(t, asRole(t, env, conn, newRole(t, conn, "", "LOGIN REPLICATION")), "teardown", "--yes")
	wantError(t, r, "hint: export CDC_RELAY_DATABASE_URL=postgres://OWNER@127.0.0.1:")
	wantTexts(t, r.stdout, "dropped slot")
	wantOutput(t, cdcRelay(t, env, "teardown", "--yes"), "dropped publication")
}

// wantJSON checks that the output is one JSON value with these values.
// A value of nil stands for a missing key.
func wantJSON(t *testing.T, r result, code int, wanted map[string]any) {
	t.Helper()
	want(t, r, code)
	var got map[string]any
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
		t.Fatalf("%v\n%s", err, r.stdout)
	}
	for key, value := range wanted {
		if found, is := got[key]; is != (value != nil) || !reflect.DeepEqual(found, value) {
			t.Errorf("%s is %v (%t), want %v", key, found, is, value)
		}
	}
}

func TestSetupAndDrainPrintJSON(t *testing.T) {
	t.Parallel()
	env, conn := fresh(t)
	made := []any{"created tables public.outbox and public.outbox_dead_letter (version 1)"}
	wantJSON(t, cdcRelay(t, env, "setup", "--tables-only", "--json"), exitDone, map[string]any{"version": 1.0, "done": made})
	r := cdcRelay(t, env, "setup", "--json")
	wantJSON(t, r, exitDone, map[string]any{"table": "public.outbox", "version": 1.0})
	wantTexts(t, r.stdout, "created slot "+env["CDC_RELAY_SLOT"])
	wantJSON(t, cdcRelay(t, env, "setup", "--json"), exitDone, map[string]any{"version": 1.0, "done": []any{}})

	env["CDC_RELAY_AMQP_URL"] = services.VHost(t)
	execute(t, conn, `INSERT INTO outbox (exchange, routing_key, payload) VALUES ('', 'nowhere', '1'), ('', 'k', NULL)`)
	wantJSON(t, cdcRelay(t, env, "drain", "--json"), exitDone,
		map[string]any{"published": 0.0, "rejected": 2.0, "dead_lettered": 1.0, "possible_duplicates": 0.0, "error": nil})
	wantUsage(t, cdcRelay(t, env, "drain", "--json", "--publisher", "stdout"), "--publisher stdout writes messages to the standard output: leave out --json")
	execute(t, conn, `ALTER TABLE outbox DROP COLUMN headers`)
	for command, wanted := range map[string]map[string]any{"setup": {"table": "public.outbox"}, "drain": {"published": 0.0}} {
		r = cdcRelay(t, env, command, "--json")
		wantJSON(t, r, exitFailed, wanted)
		wantTexts(t, r.stdout, `"error": "`, "headers")
	}
}

// On hardened servers, not every role may read the catalog. Each command that stops for that names the GRANT, and it is
// enough.
func TestARevokedCatalogGetsItsGrant(t *testing.T) {
	env, conn := fresh(t)
	role := newRole(t, conn, "", "LOGIN REPLICATION")
	want(t, cdcRelay(t, env, "setup", "--relay-role", role), exitDone)
	relays := asRole(t, env, conn, role)
	relays["CDC_RELAY_PUBLISHER"] = "stdout"
	given := regexp.MustCompile(`(GRANT (SELECT|EXECUTE|USAGE) ON|DO ).*;`)
	for _, test := range []struct{ object, commands string }{
		{"SELECT ON pg_stat_activity", "setup, check, stats, drain"},
		{"SELECT ON pg_stat_replication", "setup, check, stats"},
		{"SELECT ON pg_replication_slots", "setup, check, stats"},
		{"SELECT ON pg_class", "setup, check, drain"},
		{"SELECT ON pg_publication", "setup, check"},
		{"SELECT ON pg_publication_tables", "setup, check"},
		{"SELECT ON pg_roles", "setup, check"},
		{"SELECT ON pg_locks", "check, stats"},
		{"SELECT ON pg_stat_all_tables", "check"},
		{"SELECT ON pg_settings", "check"},
		{"EXECUTE ON FUNCTION pg_current_wal_flush_lsn()", "setup, check, stats"},
		{"EXECUTE ON FUNCTION has_table_privilege(oid, text)", "drain"},
	} {
		for command := range strings.SplitSeq(test.commands, ", ") {
			execute(t, conn, "REVOKE "+test.object+" FROM PUBLIC")
			r := cdcRelay(t, relays, strings.Fields(command)...)
			grant := given.FindString(r.stdout + r.stderr)
			if grant == "" {
				t.Errorf("%s without %s: no GRANT\n%s%s", command, test.object, r.stdout, r.stderr)
			} else {
				execute(t, conn, grant)
				if r = cdcRelay(t, relays, strings.Fields(command)...); strings.Contains(r.stdout+r.stderr, "permission denied") {
					t.Errorf("%s after %s: %s%s", command, grant, r.stdout, r.stderr)
				}
			}
			execute(t, conn, "GRANT "+test.object+" TO PUBLIC")
			execute(t, conn, "REVOKE "+test.object+` FROM "`+role+`"`)
		}
	}
}
