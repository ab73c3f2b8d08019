package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// checked is a database and a broker for which check finds nothing wrong.
func checked(t *testing.T) environment {
	t.Helper()
	env, _ := fresh(t)
	env["CDC_RELAY_AMQP_URL"] = services.VHost(t)
	env["CDC_RELAY_MANAGEMENT_URL"] = services.SharedRabbitMQ(t).ManagementURL()
	want(t, cdcRelay(t, env, "setup"), exitDone)
	return env
}

func TestCheckPassesAHealthySetup(t *testing.T) {
	t.Parallel()
	env := checked(t)
	r := cdcRelay(t, env, "check")
	wantOutput(t, r, "warning  slot", "no relay streams, and the slot retains WAL", "\n  ", " other checks passed (--all lists them)\n")
	if strings.Contains(r.stdout, "\x1b") || strings.Contains(r.stdout, "ok  ") || r.stderr != "" {
		t.Errorf("got %q, %q", r.stdout, r.stderr)
	}
	all := cdcRelay(t, env, "check", "--all")
	if wantOutput(t, all, "\nok       postgres"); !strings.HasPrefix(all.stdout, "warning  ") || strings.Contains(all.stdout, "passed") {
		t.Errorf("with --all: got %s", all.stdout)
	}
	r = cdcRelay(t, env, "check", "--strict")
	wantError(t, r, "cdc-relay: check: ", " warnings, ")
}

// A standby knows neither relays nor their locks and slots: no command looks or writes there. Check examines the host
// that target_session_attrs selects, not simply the first one, in a session that cannot write.
func TestCommandsNameAStandby(t *testing.T) {
	t.Parallel()
	server := services.PrivatePostgres(t)
	env := environment{"CDC_RELAY_DATABASE_URL": server.Database(t), "CDC_RELAY_PUBLISHER": "stdout", "CDC_RELAY_LOG_FORMAT": "text"}
	want(t, cdcRelay(t, env, "setup"), exitDone)
	for _, attributes := range []string{"standby", "read-only"} {
		r := cdcRelay(t, env, "stats", "--database-url", env["CDC_RELAY_DATABASE_URL"]+"&target_session_attrs="+attributes)
		wantError(t, r, "hint: # target_session_attrs asks for a standby")
	}
	standby := services.Standby(t, server)
	both, err := url.Parse(env["CDC_RELAY_DATABASE_URL"])
	must(t, err)
	primary := both.Host
	both.Host = standby.Addr()
	env["CDC_RELAY_DATABASE_URL"] = both.String()
	for _, args := range []string{
		"stats", "list", "explain 1", "keys", "resend 1 --yes", "delete 1 --yes", "setup", "setup --tables-only", "teardown --yes",
		"adopt --from a --set routing_key=b", "drain",
	} {
		wantError(t, cdcRelay(t, env, strings.Fields(args)...), "this server is a standby", "use the primary in --database-url")
	}
	r := cdcRelay(t, env, "check", "--fix", "--yes")
	if wantTexts(t, r.stdout, "this server is a standby", "nothing that --fix repairs"); strings.Count(r.stdout, "critical  ") != 1 {
		t.Errorf("got %s", r.stdout)
	}
	env["CDC_RELAY_LOG_FORMAT"] = "json"
	console, at := startConsole(t, env)
	_, body := fetch(t, http.MethodGet, at+"/waiting", nil)
	wantTexts(t, body, "this server is a standby", "use the primary in --database-url")
	console.stopsWell(t)
	for _, args := range [][]string{{"run"}, {"run", "--mode", "poll"}, {"run", "--setup"}} { // the standby may be promoted
		waits := start(t, env, args...)
		wantTexts(t, waits.await(t, "this server is a standby"), "use the primary in --database-url")
		waits.stopsWell(t)
	}

	both.Host += "," + primary
	for attributes, want := range map[string]string{"read-write": primary, "primary": primary, "read-only": standby.Addr(), "prefer-standby": standby.Addr()} {
		query := both.Query()
		query.Set("target_session_attrs", attributes)
		both.RawQuery = query.Encode()
		conn, err := connectToCheck(t.Context(), pgdial.AddressOf(both.String(), ""), "", map[string]string{"default_transaction_read_only": "on"})
		if err != nil {
			t.Errorf("%s: %v", attributes, err)
			continue
		}
		if got := conn.PgConn().Conn().RemoteAddr().String(); got != want {
			t.Errorf("%s: connected to %s, want %s", attributes, got, want)
		}
		var pgErr *pgconn.PgError
		_, err = conn.Exec(t.Context(), "CREATE TABLE written ()")
		readOnly := errors.As(err, &pgErr) && pgErr.Code == pgerrcode.ReadOnlySQLTransaction
		if status := conn.PgConn().TxStatus(); status != 'I' || !readOnly {
			t.Errorf("%s: the session can write, or its transaction is open: %c, %v", attributes, status, err)
		}
		closeConn(t.Context(), conn)
	}
}

func TestCheckReportsProblemsWithTheirFix(t *testing.T) {
	t.Parallel()
	env := checked(t)
	want(t, cdcRelay(t, env, "teardown", "--yes"), exitDone)
	r := cdcRelay(t, env, "check")
	wantError(t, r, "cdc-relay: check: 2 critical, ")
	wantTexts(t, r.stdout, "critical  publication", "CREATE PUBLICATION")
	// A relay that does not stream has no problem.
	wantOutput(t, cdcRelay(t, env, "check", "--all", "--mode", "poll"), "--mode poll needs no streaming")
}

func TestCheckPrintsDocumentedJSON(t *testing.T) {
	env := checked(t)
	r := cdcRelay(t, env, "check", "--json", "--app-role", "no_such_role")
	want(t, r, exitFailed)
	var report struct {
		Level    string
		Findings []map[string]any
	}
	must(t, json.Unmarshal([]byte(r.stdout), &report))
	if report.Level != "critical" || len(report.Findings) < 20 {
		t.Errorf("got %s, %d findings", report.Level, len(report.Findings))
	}
	found := false
	for _, f := range report.Findings {
		for key := range f {
			if !slices.Contains([]string{"area", "name", "subject", "level", "message", "fix"}, key) {
				t.Errorf("the key %s is not documented", key)
			}
		}
		if f["area"] == "grants" && f["name"] == "application" {
			found = f["level"] == "critical" && slices.Contains(f["fix"].([]any), any(grantInsert("no_such_role")))
		}
	}
	if !found {
		t.Errorf("got %s", r.stdout)
	}
}

func grantInsert(role string) string {
	return "GRANT INSERT (" + strings.Join(schema.Insert(), ", ") + `) ON "public"."outbox" TO "` + role + `";`
}

func TestCheckReportsUnreachableServers(t *testing.T) {
	env := environment{"CDC_RELAY_DATABASE_URL": someDatabase, "CDC_RELAY_AMQP_URL": someBroker}
	r := cdcRelay(t, env, "check")
	want(t, r, exitFailed)
	wantTexts(t, r.stdout, "cannot connect to Postgres: 127.0.0.1:1: connection refused", "check that Postgres runs there",
		"RabbitMQ at 127.0.0.1:1", "check that RabbitMQ runs there")
	if strings.Contains(r.stdout+r.stderr, "s3cr3t") {
		t.Errorf("the password is shown: %s", r.stdout)
	}
	want(t, cdcRelay(t, env, "check", "--publisher", "stdout"), exitFailed)
}

// Check --fix creates and grants, and drops nothing.
func TestFixPrintsAndRunsTheSafeRepairs(t *testing.T) {
	t.Parallel()
	env, conn := fresh(t)
	app := newRole(t, conn, "", "LOGIN")
	want(t, cdcRelay(t, env, "setup"), exitDone)
	slot := env["CDC_RELAY_SLOT"]
	execute(t, conn, "DROP TABLE outbox_dead_letter; CREATE TABLE other (id int)")
	execute(t, conn, "ALTER PUBLICATION "+slot+" ADD TABLE other; ALTER TABLE outbox SET (autovacuum_enabled = off)")
	execute(t, conn, "SELECT pg_drop_replication_slot('"+slot+"')")
	check := func(args ...string) result {
		return cdcRelay(t, env, append([]string{"check", "--publisher", "stdout", "--app-role", app}, args...)...)
	}
	repairs := []string{
		"cdc-relay setup --slot " + slot + " --publication " + slot, grantInsert(app),
		`ALTER TABLE "public"."outbox" RESET (autovacuum_enabled);`,
	}
	printed := check("--fix")
	want(t, printed, exitFailed)
	wantTexts(t, printed.stdout, "\n  "+repairs[0]+"\n", "\n  "+repairs[1]+"\n", "\n  "+repairs[2]+"\n")
	if query[bool](t, conn, "SELECT to_regclass('outbox_dead_letter') IS NOT NULL") {
		t.Error("--fix without --yes has changed something")
	}
	run := check("--fix", "--yes", "--json")
	want(t, run, exitDone)
	var report checkReport
	must(t, json.Unmarshal([]byte(run.stdout), &report))
	var done []string
	for _, r := range report.Repairs {
		if r.Done && r.Error == "" {
			done = append(done, r.Command)
		}
	}
	for _, repair := range repairs {
		if !slices.Contains(done, repair) {
			t.Errorf("not done: %s\n%s", repair, run.stdout)
		}
	}
	wantValue(t, conn, 1,
		"SELECT count(*)::int FROM pg_publication_tables WHERE pubname = $1 AND tablename = 'other'", slot)
	if left := check("--fix"); !strings.Contains(left.stdout, "nothing that --fix repairs") {
		t.Errorf("objects are left: %s", left.stdout)
	}
}

// The administrator has every privilege, so check must examine the role named by --relay-role.
func TestFixByAnAdministratorGrantsToTheRelaysRole(t *testing.T) {
	t.Parallel()
	env, conn := withTables(t)
	role := newRole(t, conn, "", "LOGIN REPLICATION")
	check := func(args ...string) result {
		return cdcRelay(t, env, append([]string{"check", "--publisher", "stdout"}, args...)...)
	}
	wantOutput(t, check("--all"), "is a superuser and may do everything", "--relay-role NAME")
	before := check("--relay-role", role)
	want(t, before, exitFailed)
	wantTexts(t, before.stdout, `GRANT SELECT, UPDATE, DELETE ON "public"."outbox" TO "`+role+`";`)
	want(t, check("--relay-role", role, "--fix", "--yes"), exitDone)
	want(t, cdcRelay(t, asRole(t, env, conn, role), "check", "--publisher", "stdout"), exitDone)

	missing := check("--relay-role", "no_such_role")
	want(t, missing, exitFailed)
	wantTexts(t, missing.stdout, `role "no_such_role" does not exist`,
		`CREATE ROLE "no_such_role" LOGIN;  -- or set --relay-role to an existing role`)
}

// Grants on the tables can follow only when the tables exist.
func TestFixRepairsAnEmptyDatabaseInOneRun(t *testing.T) {
	t.Parallel()
	env, conn := fresh(t)
	role, other := newRole(t, conn, "", "LOGIN REPLICATION"), newRole(t, conn, "_admin", "LOGIN")
	before := cdcRelay(t, env, "check", "--publisher", "stdout")
	want(t, before, exitFailed)
	if !strings.HasPrefix(before.stdout, "critical  tables ") || strings.Count(before.stdout, "critical ") != 1 {
		t.Errorf("before setup: got %s", before.stdout)
	}
	wantTexts(t, before.stderr, "check: 1 critical")
	want(t, cdcRelay(t, env, "check", "--publisher", "stdout", "--relay-role", role, "--fix", "--yes"), exitDone)
	denied := cdcRelay(t, asRole(t, env, conn, other), "check", "--publisher", "stdout", "--relay-role", role)
	want(t, denied, exitFailed)
	wantTexts(t, denied.stdout, `a member of "`+role+`"`)
}

func TestAFailedRepairIsReported(t *testing.T) {
	env, conn := withTables(t, "--mode", "poll")
	role := newRole(t, conn, "", "LOGIN")
	r := cdcRelay(t, asRole(t, env, conn, role), "check", "--mode", "poll", "--publisher", "stdout", "--fix", "--yes")
	want(t, r, exitFailed)
	wantTexts(t, r.stdout, "  failed: GRANT SELECT, UPDATE, DELETE ON", "permission denied")
}
