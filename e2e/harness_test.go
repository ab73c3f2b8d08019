// Package e2e drives the built binary as users do: against real servers, through
// the contract of docs/contract.md alone (tables, commands, flags, AMQP).
package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/services"
)

// binary is the relay under test, built once per run, with the race detector where the
// tests have it.
var binary string

func TestMain(m *testing.M) {
	var err error
	if binary, err = build("cdc-relay", raceDetector); err != nil {
		fmt.Fprintln(os.Stderr, "build the relay:", err)
		os.Exit(1)
	}
	services.Main(m)
}

// build makes a binary in a folder that is not a temporary one: services.Main exits, and
// nobody would remove it.
func build(name string, race bool) (string, error) {
	file, err := filepath.Abs(filepath.Join("../.dev/e2e", name))
	if err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", fmt.Sprintf("-race=%t", race), "-o", file, "../cmd/cdc-relay").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return file, nil
}

// world is a database, a virtual host and the names of what a test uses there.
type world struct {
	t        *testing.T
	binary   string
	database string
	broker   string
	queue    string
	slot     string
	db       *pgxpool.Pool
	settings []string // further environment of the relay
	stdout   *os.File // of the relay; nil: nothing is kept
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(t, services.Database(t), services.VHost(t))
}

func newWorldOn(t *testing.T, database, broker string) *world {
	t.Helper()
	w := &world{t: t, binary: binary, database: database, broker: broker, queue: services.Name(t), slot: services.Name(t)}
	config, err := pgxpool.ParseConfig(database)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["client_encoding"] = "UTF8" // strings are, whatever the database has
	w.db, err = pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.db.Close)
	return w
}

// setUp makes tables, publication and slot, and the queue.
func (w *world) setUp() *world {
	w.t.Helper()
	if out, code := w.command("setup"); code != 0 {
		w.t.Fatalf("setup: exit %d\n%s", code, out)
	}
	w.declareQueue(w.queue, nil)
	return w
}

func (w *world) env() []string {
	return append(append(os.Environ(),
		"CDC_RELAY_DATABASE_URL="+w.database, "CDC_RELAY_AMQP_URL="+w.broker, "CDC_RELAY_SLOT="+w.slot,
		"CDC_RELAY_PUBLICATION="+w.slot, "CDC_RELAY_HTTP_ADDR=127.0.0.1:0",
		"GORACE=atexit_sleep_ms=0", // else it sleeps for a second at the end
	), w.settings...)
}

// command runs one command to its end.
func (w *world) command(args ...string) (output string, code int) {
	w.t.Helper()
	stdout, stderr, code := w.outputs(args...)
	return stdout + stderr, code
}

// outputs is command with the two outputs apart.
func (w *world) outputs(args ...string) (stdout, stderr string, code int) {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), w.binary, args...)
	cmd.Env = w.env()
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, ok := err.(*exec.ExitError); err != nil && !ok {
		w.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", firstLine(sql), err)
	}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

func value[T any](w *world, sql string, args ...any) T {
	w.t.Helper()
	var v T
	if err := w.db.QueryRow(w.t.Context(), sql, args...).Scan(&v); err != nil {
		w.t.Fatalf("%s: %v", firstLine(sql), err)
	}
	return v
}

// query reads all rows: structs by name, others by their one column.
func query[T any](w *world, sql string, args ...any) []T {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), sql, args...)
	if err != nil {
		w.t.Fatalf("%s: %v", firstLine(sql), err)
	}
	collect := pgx.RowTo[T]
	if reflect.TypeFor[T]().Kind() == reflect.Struct {
		collect = pgx.RowToStructByName[T]
	}
	list, err := pgx.CollectRows(rows, collect)
	if err != nil {
		w.t.Fatalf("%s: %v", firstLine(sql), err)
	}
	return list
}

// eventually waits for a condition to hold, and says what it waited for otherwise. It waits for
// longer than it is told: what has to be quick is measured, see within.
func (w *world) eventually(what string, within time.Duration, condition func() bool) {
	w.t.Helper()
	within *= 3
	deadline := time.After(within)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			w.t.Fatalf("%s: did not happen within %s", what, within)
		}
	}
}

func (w *world) outboxEmpty() bool {
	return value[int](w, `SELECT count(*) FROM (SELECT 1 FROM outbox LIMIT 1) o`) == 0
}

// relay is one running `cdc-relay run`.
type relay struct {
	w    *world
	cmd  *exec.Cmd
	http string
	done chan struct{}
	mu   sync.Mutex
	log  bytes.Buffer
}

// run starts a relay and waits until it is up. It is killed at the end of the test.
func (w *world) run(args ...string) *relay {
	w.t.Helper()
	r := w.start(args...)
	w.eventually("the relay is ready", 30*time.Second, func() bool { return r.ready() || r.exited() })
	if r.exited() {
		w.t.Fatalf("the relay ended:\n%s", r.logs())
	}
	return r
}

func (w *world) start(args ...string) *relay {
	w.t.Helper()
	r := &relay{w: w, done: make(chan struct{})}
	r.cmd = exec.Command(w.binary, append([]string{"run", "--log-format", "json"}, args...)...)
	r.cmd.Env = w.env()
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if w.stdout != nil {
		r.cmd.Stdout = w.stdout
	}
	stderr, err := r.cmd.StderrPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	address := make(chan string, 1)
	go r.readLog(stderr, address)
	w.t.Cleanup(func() {
		if w.t.Failed() && !r.exited() {
			metrics, _ := r.get("/metrics")
			w.t.Logf("metrics of the relay:\n%s", metrics)
			_ = r.cmd.Process.Signal(syscall.SIGQUIT) // says where its goroutines are
		} else {
			_ = r.cmd.Process.Kill()
		}
		<-r.done
		if strings.Contains(r.logs(), "WARNING: DATA RACE") {
			w.t.Error("the race detector has found something")
		}
		if w.t.Failed() {
			w.t.Logf("log of the relay:\n%s", r.logs())
		}
	})
	select {
	case r.http = <-address:
	case <-r.done:
	case <-time.After(30 * time.Second):
		w.t.Fatalf("the relay says no address:\n%s", r.logs())
	}
	return r
}

func (r *relay) readLog(from io.Reader, address chan<- string) {
	defer close(r.done)
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		r.mu.Lock()
		r.log.Write(lines.Bytes())
		r.log.WriteByte('\n')
		r.mu.Unlock()
		var entry struct{ Addr string }
		if json.Unmarshal(lines.Bytes(), &entry) == nil && entry.Addr != "" {
			select {
			case address <- entry.Addr:
			default:
			}
		}
	}
	_ = r.cmd.Wait()
}

func (r *relay) logs() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

func (r *relay) exited() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

func (r *relay) get(path string) (body string, status int) {
	response, err := http.Get("http://" + r.http + path)
	if err != nil {
		return "", 0
	}
	defer response.Body.Close()
	b, _ := io.ReadAll(response.Body)
	return string(b), response.StatusCode
}

func (r *relay) ready() bool {
	_, status := r.get("/readyz")
	return status == http.StatusOK
}

// metric is the value of one series, 0 where it is not there.
func (r *relay) metric(series string) float64 {
	body, _ := r.get("/metrics")
	for line := range strings.Lines(body) {
		if name, text, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == series {
			var v float64
			_, _ = fmt.Sscan(text, &v)
			return v
		}
	}
	return 0
}

// stop asks for a clean end and returns the exit code.
func (r *relay) stop() int {
	r.w.t.Helper()
	r.signal(syscall.SIGTERM)
	return r.exit(40 * time.Second)
}

func (r *relay) signal(sig os.Signal) { _ = r.cmd.Process.Signal(sig) }

// exit waits for the end of the process and returns its exit code.
func (r *relay) exit(within time.Duration) int {
	r.w.t.Helper()
	select {
	case <-r.done:
	case <-time.After(within):
		r.w.t.Fatalf("the relay has not ended within %s", within)
	}
	return r.cmd.ProcessState.ExitCode()
}

func (r *relay) kill() {
	_ = r.cmd.Process.Kill()
	<-r.done
}

// residentMB is the most memory that the process has had, in MB.
func (r *relay) residentMB() int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
	if err != nil {
		r.w.t.Skip("no /proc on this system")
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kb int
			_, _ = fmt.Sscan(rest, &kb)
			return kb / 1024
		}
	}
	return 0
}

func (w *world) channel() *amqp.Channel {
	w.t.Helper()
	conn, err := amqp.Dial(w.broker)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	if err != nil {
		w.t.Fatal(err)
	}
	return channel
}

func (w *world) declareQueue(name string, args amqp.Table) {
	w.t.Helper()
	if _, err := w.channel().QueueDeclare(name, true, false, false, false, args); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.deleteQueue(name) })
}

func (w *world) deleteQueue(name string) {
	conn, err := amqp.Dial(w.broker)
	if err != nil {
		return // the broker went with the test
	}
	defer conn.Close()
	if channel, err := conn.Channel(); err == nil {
		_, _ = channel.QueueDelete(name, false, false, false)
	}
}
