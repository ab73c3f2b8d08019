package main

import (
	"bytes"
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/await"
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

// lines waits for printed text.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
	want string
	seen chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	if l.want != "" && strings.Contains(l.text.String(), l.want) {
		close(l.seen)
		l.want = ""
	}
	return len(p), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// soakRun runs the program. It sends the signals once the text was printed.
func soakRun(t *testing.T, after string, signals []os.Signal, args ...string) (code int, output string) {
	t.Helper()
	services.SharedPostgres(t) // without it, the program cannot start servers either
	services.SharedRabbitMQ(t)
	t.Setenv("TMPDIR", t.TempDir())
	channel := make(chan os.Signal, 2)
	out := &lines{want: after, seen: make(chan struct{})}
	p := process{args: append([]string{"cdc-relay-soak"}, args...), stdin: strings.NewReader(""), stdout: out, stderr: out, signals: channel}
	ended := make(chan int, 1)
	go func() { ended <- p.run(t.Context()) }()
	for {
		select {
		case <-out.seen:
			out.seen = nil
			for _, sig := range signals {
				channel <- sig
			}
		case code := <-ended:
			return code, out.String()
		case <-time.After(await.Hang()):
			t.Fatalf("the run has not ended:\n%s", out)
		}
	}
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

// The history up to the signal is checked as a complete run.
func TestTheFirstSignalEndsTheFaults(t *testing.T) {
	code, out := soakRun(t, "fault 1:", []os.Signal{syscall.SIGINT}, append([]string{
		"--relay", relayProgram(t), "--duration", "1h", "--hold", "1h", "--pause", "2s", "--rate", "100", "--faults", "relay-stop-all",
		"--database-url", services.Database(t), "--amqp-url", services.VHost(t), "--yes",
	}, retrying()...)...)
	if code != exitPassed || !strings.Contains(out, "PASS") {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

func TestTheSecondSignalEndsTheRunAtOnce(t *testing.T) {
	began := time.Now()
	code, out := soakRun(t, "acknowledged", []os.Signal{syscall.SIGINT, syscall.SIGINT},
		"--relay", relayProgram(t), "--duration", "1h", "--rate", "100", "--faults", "none")
	if code != exitCut || !strings.Contains(out, "the history: ") {
		t.Errorf("exit %d after %s:\n%s", code, time.Since(began), out)
	}
	noProcess(t, os.TempDir())
}

// noProcess checks that no process with the run's folder in its command line is left.
func noProcess(t *testing.T, folder string) {
	t.Helper()
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range commands {
		if content, err := os.ReadFile(file); err == nil && bytes.Contains(content, []byte(folder)) {
			t.Errorf("%s is still there: %q", file, content)
		}
	}
}

func TestARunOnTheUsersServersLeavesNothing(t *testing.T) {
	database, broker := services.Database(t), services.VHost(t)
	code, out := soakRun(t, "", nil, append([]string{
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

func TestUnavailableServersAreReported(t *testing.T) {
	code, out := soakRun(t, "", nil, "--relay", "/bin/true", "--database-url", "postgres://u:secret@127.0.0.1:1/x", "--yes")
	if code != exitNotRun || strings.Contains(out, "secret") {
		t.Errorf("exit %d:\n%s", code, out)
	}
}
