package main

import (
	"context"
	"maps"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/service"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// fresh returns an environment with its own database.
func fresh(t *testing.T) (environment, *pgx.Conn) {
	t.Helper()
	url := services.Database(t)
	conn, err := pgx.Connect(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	name := services.Name(t) // slots belong to the server, not to the database
	return environment{
		"CDC_RELAY_DATABASE_URL": url,
		"CDC_RELAY_SLOT":         name,
		"CDC_RELAY_PUBLICATION":  name,
		"CDC_RELAY_HTTP_ADDR":    "127.0.0.1:0",
	}, conn
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
	objects := func() [3]bool {
		return [3]bool{
			query[bool](t, conn, "SELECT to_regclass('outbox') IS NOT NULL"),
			query[bool](t, conn, "SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1)", slot),
			query[bool](t, conn, "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)", slot),
		}
	}
	wantObjects := func(tables, publication, slot bool) {
		t.Helper()
		if got := objects(); got != [3]bool{tables, publication, slot} {
			t.Errorf("tables, publication, slot: %v", got)
		}
	}
	wantOutput(t, cdcRelay(t, env, "setup", "--tables-only"), "created tables public.outbox and public.outbox_dead_letter (version 1)\n")
	wantObjects(true, false, false)
	wantOutput(t, cdcRelay(t, env, "setup"), "version 1, nothing to do", "created publication", "created slot "+slot)
	wantObjects(true, true, true)
	wantOutput(t, cdcRelay(t, env, "setup"), "version 1, nothing to do", "exist, nothing to do")
	wantOutput(t, cdcRelay(t, env, "setup", "--tables-only"), "version 1, nothing to do")

	for _, answer := range []string{"", "\n", "n\n", "nay", "teardown\n"} {
		r := withInput(t, env, answer, "teardown")
		want(t, r, exitFailed)
		if !strings.Contains(r.stderr, "not confirmed: nothing was dropped") {
			t.Errorf("%q: got %s", answer, r.stderr)
		}
	}
	wantObjects(true, true, true)
	execute(t, conn, "INSERT INTO outbox (routing_key, payload) VALUES ('k', '{}')")
	wantError(t, cdcRelay(t, env, "teardown", "--tables", "--yes"), "public.outbox has 1 message", "hint: ")
	wantObjects(true, true, true)
	wantOutput(t, withInput(t, env, "y\n", "teardown"), "[y/N] ", "dropped slot "+slot, "dropped publication")
	wantObjects(true, false, false)
	execute(t, conn, "DELETE FROM outbox")
	wantOutput(t, cdcRelay(t, env, "teardown", "--tables", "--yes"), "not there", "dropped tables public.outbox and public.outbox_dead_letter")
	wantObjects(false, false, false)
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

// asRole returns an environment that logs in as a role with the password s3cr3t.
func asRole(t *testing.T, env environment, conn *pgx.Conn, role string) environment {
	t.Helper()
	config, other := conn.Config(), maps.Clone(env)
	other["CDC_RELAY_DATABASE_URL"] = strings.Join([]string{
		"host=" + config.Host, "port=" + strconv.Itoa(int(config.Port)), "dbname=" + config.Database, "user=" + role, "password=s3cr3t", "sslmode=disable",
	}, " ")
	return other
}

func TestUnknownDatabaseIsNamed(t *testing.T) {
	env, conn := fresh(t)
	config := conn.Config()
	env["CDC_RELAY_DATABASE_URL"] = strings.Replace(env["CDC_RELAY_DATABASE_URL"], "/"+config.Database, "/No_such", 1)
	wantError(t, cdcRelay(t, env, "setup"), `hint: CREATE DATABASE "No_such";`)
}

func TestAnAddressInUseHasAHint(t *testing.T) {
	env, _ := fresh(t)
	listener, err := service.Listen(t.Context(), "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	r := cdcRelay(t, env, "run", "--publisher", "stdout", "--log-format", "text", "--http-addr", listener.Addr().String())
	wantError(t, r, "address already in use", "hint: # choose another address")
}

func TestLivenessFileThatCannotBeWritten(t *testing.T) {
	env, _ := fresh(t)
	r := cdcRelay(t, env, "run", "--publisher", "stdout", "--log-format", "text", "--liveness-file", t.TempDir()+"/no/such/folder")
	wantError(t, r, "--liveness-file", "no such file")
}

func TestTeardownByTheRelaysRoleNamesTheOwner(t *testing.T) {
	env, conn := withTables(t)
	r := cdcRelay(t, asRole(t, env, conn, newRole(t, conn, "", "LOGIN REPLICATION")), "teardown", "--yes")
	want(t, r, exitFailed)
	if !strings.Contains(r.stdout, "dropped slot") || !strings.Contains(r.stderr, "hint: export CDC_RELAY_DATABASE_URL=postgres://OWNER@127.0.0.1:") {
		t.Errorf("got %s%s", r.stdout, r.stderr)
	}
	wantOutput(t, cdcRelay(t, env, "teardown", "--yes"), "dropped publication")
}
