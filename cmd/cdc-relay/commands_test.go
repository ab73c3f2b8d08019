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
	if err != nil {
		t.Fatal(err)
	}
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
	r := cdcRelay(t, env, "teardown", "--tables", "--yes")
	want(t, r, exitFailed)
	if !strings.Contains(r.stderr, "public.outbox has 1 message") || !strings.Contains(r.stderr, "hint: ") {
		t.Errorf("got %s", r.stderr)
	}
	wantObjects(true, true, true)
	wantOutput(t, withInput(t, env, "y\n", "teardown"), "[y/N] ", "dropped slot "+slot, "dropped publication")
	wantObjects(true, false, false)
	execute(t, conn, "DELETE FROM outbox")
	wantOutput(t, cdcRelay(t, env, "teardown", "--tables", "--yes"), "not there", "dropped tables public.outbox and public.outbox_dead_letter")
	wantObjects(false, false, false)
	wantOutput(t, cdcRelay(t, env, "teardown", "--tables", "--yes"), "tables of public.outbox: not there")
}

// Run suggests setup, with or without --tables-only. These must not answer that there is nothing to do.
func TestSetupCreatesEverythingThatRunNeeds(t *testing.T) {
	env, conn := withTables(t, "--mode", "poll")
	env["CDC_RELAY_MODE"] = "poll"
	hint := func(r result) string {
		t.Helper()
		want(t, r, exitFailed)
		_, hint, _ := strings.Cut(r.stderr, "hint: ")
		hint, _, _ = strings.Cut(hint, "  #")
		return strings.TrimSpace(hint)
	}
	for broken, repair := range map[string]string{
		"DROP TABLE outbox_dead_letter":                                  "created table public.outbox_dead_letter again: it was missing",
		"DROP TABLE outbox, outbox_dead_letter":                          "created table public.outbox again: it was missing",
		"ALTER TABLE outbox DROP headers":                                `ALTER TABLE "public"."outbox" ADD COLUMN "headers" jsonb;`,
		"ALTER TABLE outbox RENAME TO o; CREATE VIEW outbox AS SELECT 1": `ALTER VIEW "public"."outbox" RENAME TO "outbox_view"`,
	} {
		execute(t, conn, broken)
		said := hint(cdcRelay(t, env, "run", "--publisher", "stdout", "--log-format", "text"))
		if strings.HasPrefix(said, "ALTER") && strings.HasPrefix(said, repair) {
			execute(t, conn, said)
			continue
		}
		if said != "cdc-relay setup" && said != "cdc-relay setup --tables-only" {
			t.Errorf("%s: run says %q", broken, said)
		}
		r := cdcRelay(t, env, strings.Fields(said)[1:]...)
		if !strings.Contains(r.stdout+r.stderr, repair) {
			t.Errorf("%s: got %s%s", broken, r.stdout, r.stderr)
		}
		if r.code != exitDone {
			execute(t, conn, hint(r))
		}
		if strings.Contains(broken, "VIEW") {
			execute(t, conn, "ALTER TABLE o RENAME TO outbox")
		}
		wantOutput(t, cdcRelay(t, env, "setup"), "nothing to do")
	}
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

func TestMissingPrivilegesAreNamed(t *testing.T) {
	env, conn := fresh(t)
	execute(t, conn, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	role := newRole(t, conn, "", "LOGIN")
	env = asRole(t, env, conn, role)
	r := cdcRelay(t, env, "setup", "--tables-only")
	want(t, r, exitFailed)
	if !strings.Contains(r.stderr, "permission denied for schema public") || !strings.Contains(r.stderr, `GRANT CREATE, USAGE ON SCHEMA "public" TO "`+role+`"`) {
		t.Errorf("got %s", r.stderr)
	}
}

// The owner of both tables may lack the right to create the function.
func TestAdoptNamesTheMissingPrivilege(t *testing.T) {
	env, conn := withTables(t, "--mode", "poll")
	env["CDC_RELAY_MODE"] = "poll"
	role := newRole(t, conn, "", "LOGIN")
	execute(t, conn, "CREATE TABLE events (id int PRIMARY KEY, body text)")
	execute(t, conn, "ALTER TABLE outbox OWNER TO "+role+"; ALTER TABLE events OWNER TO "+role)
	execute(t, conn, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	env = asRole(t, env, conn, role)
	adopt := []string{"adopt", "--from", "events", "--map", "routing_key=id,payload=body"}
	r := cdcRelay(t, env, adopt...)
	want(t, r, exitFailed)
	grant := `GRANT CREATE, USAGE ON SCHEMA "public" TO "` + role + `"`
	if !strings.Contains(r.stderr, "permission denied for schema public") || !strings.Contains(r.stderr, "hint: "+grant) {
		t.Errorf("got %s", r.stderr)
	}
	execute(t, conn, grant)
	want(t, cdcRelay(t, env, adopt...), exitDone)
}

func TestUnknownDatabaseIsNamed(t *testing.T) {
	env, conn := fresh(t)
	config := conn.Config()
	env["CDC_RELAY_DATABASE_URL"] = strings.Replace(env["CDC_RELAY_DATABASE_URL"], "/"+config.Database, "/No_such", 1)
	r := cdcRelay(t, env, "setup")
	want(t, r, exitFailed)
	if !strings.Contains(r.stderr, `hint: CREATE DATABASE "No_such";`) {
		t.Errorf("got %s", r.stderr)
	}
}

func TestAnAddressInUseHasAHint(t *testing.T) {
	env, _ := fresh(t)
	listener, err := service.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	r := cdcRelay(t, env, "run", "--publisher", "stdout", "--log-format", "text", "--http-addr", listener.Addr().String())
	want(t, r, exitFailed)
	if !strings.Contains(r.stderr, "address already in use") || !strings.Contains(r.stderr, "hint: # choose another address") {
		t.Errorf("got %s", r.stderr)
	}
}

func TestLivenessFileThatCannotBeWritten(t *testing.T) {
	env, _ := fresh(t)
	r := cdcRelay(t, env, "run", "--publisher", "stdout", "--log-format", "text", "--liveness-file", t.TempDir()+"/no/such/folder")
	want(t, r, exitFailed)
	if !strings.Contains(r.stderr, "--liveness-file") || !strings.Contains(r.stderr, "no such file") {
		t.Errorf("got %s", r.stderr)
	}
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
