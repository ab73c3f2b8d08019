package main

import (
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

func TestMain(m *testing.M) { services.Main(m) }

// relayProgram builds the relay under test unless it exists.
func relayProgram(t *testing.T) string {
	t.Helper()
	file, err := filepath.Abs("../../../.dev/soak-command/cdc-relay")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", file, "../../../cmd/cdc-relay").CombinedOutput(); err != nil {
		t.Fatalf("build the relay: %v\n%s", err, out)
	}
	return file
}

// retrying makes retries short.
func retrying() []string { return []string{"--", "--backoff-time", "100ms", "--max-backoff", "500ms"} }

// soakRun runs the program.
func soakRun(t *testing.T, args ...string) (code int, output string) {
	t.Helper()
	services.SharedPostgres(t) // without it, the program cannot start servers either
	services.SharedRabbitMQ(t)
	t.Setenv("TMPDIR", t.TempDir())
	var out publishtest.Buffer
	p := process{args: append([]string{"cdc-relay-soak"}, args...), stdin: strings.NewReader(""), stdout: &out, stderr: &out}
	code = p.run(t.Context())
	return code, strings.Join(out.Lines(), "\n")
}

func readReport(t *testing.T, file string) *history.Verdict {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var verdict history.Verdict
	if err := json.Unmarshal(content, &verdict); err != nil {
		t.Fatalf("%v:\n%s", err, content)
	}
	return &verdict
}

func TestARunOnTheUsersServersLeavesNothing(t *testing.T) {
	database, broker := services.Database(t), services.VHost(t)
	code, out := soakRun(t, append([]string{
		"--relay", relayProgram(t), "--duration", "5s", "--hold", "500ms", "--pause", "500ms", "--rate", "100", "--faults", "rabbitmq-cut,postgres-cut",
		"--database-url", database, "--amqp-url", broker, "--yes",
	}, retrying()...)...)
	if code != exitPassed {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	if u, err := url.Parse(database); err == nil {
		if password, ok := u.User.Password(); ok && strings.Contains(out, ":"+password+"@") {
			t.Errorf("a password is shown:\n%s", out)
		}
	}
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var left string
	err = conn.QueryRow(t.Context(), `SELECT coalesce(string_agg(name, ', '), '') FROM (
		SELECT relname AS name FROM pg_class WHERE relname LIKE '%soak%' UNION ALL
		SELECT slot_name FROM pg_replication_slots WHERE database = current_database() UNION ALL
		SELECT pubname FROM pg_publication UNION ALL
		SELECT proname FROM pg_proc WHERE proname LIKE '%soak%') n`).Scan(&left)
	if err != nil || left != "" {
		t.Errorf("the run leaves %s, %v", left, err)
	}
}
