// Package e2e tests the built binary as users run it: against real servers, and only through the contract of
// docs/contract.md (tables, commands, flags, AMQP).
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/bench/gauge"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// binary is the relay under test, built once per run, with the race detector if the tests have it.
var binary string

func TestMain(m *testing.M) {
	var err error
	if binary, err = build("cdc-relay", raceDetector); err != nil {
		fmt.Fprintln(os.Stderr, "build the relay:", err)
		os.Exit(1)
	}
	services.Main(m)
}

// build builds a binary into a folder below the working directory: services.Main exits, so nobody would remove a
// temporary folder.
func build(name string, race bool) (string, error) {
	file, err := filepath.Abs(filepath.Join("../../.dev/e2e", name))
	if err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", fmt.Sprintf("-race=%t", race), "-o", file, "../../cmd/cdc-relay").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return file, nil
}

// world is a database, a virtual host and the names that a test uses there.
type world struct {
	t        *testing.T
	binary   string
	database string
	broker   string
	queue    string
	slot     string
	db       *pgxpool.Pool
	settings []string // more environment variables of the relay
	ledgers  []*ledger
	relays   []*relay
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(t, services.Database(t), services.VHost(t))
}

func newWorldOn(t *testing.T, database, broker string) *world {
	t.Helper()
	w := &world{t: t, binary: binary, database: database, broker: broker, queue: services.Name(t), slot: services.Name(t)}
	config, err := pgxpool.ParseConfig(database)
	must(t, "read the address", err)
	config.ConnConfig.RuntimeParams["client_encoding"] = "UTF8" // strings are UTF-8 with every database encoding
	w.db, err = pgxpool.NewWithConfig(t.Context(), config)
	must(t, "connect", err)
	t.Cleanup(w.db.Close)
	return w
}

func (w *world) setUp() *world {
	w.t.Helper()
	w.succeeds("setup")
	w.declareQueue(w.queue, nil)
	return w
}

func (w *world) env() []string {
	return append(append(os.Environ(),
		"CDC_RELAY_DATABASE_URL="+w.database, "CDC_RELAY_AMQP_URL="+w.broker, "CDC_RELAY_SLOT="+w.slot,
		"CDC_RELAY_PUBLICATION="+w.slot, "CDC_RELAY_HTTP_ADDR=127.0.0.1:0",
		"GORACE=atexit_sleep_ms=0", // otherwise it sleeps for a second at the end
	), w.settings...)
}

func (w *world) command(args ...string) (output string, code int) {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), w.binary, args...)
	cmd.Env = w.env()
	out, err := cmd.CombinedOutput()
	if _, ok := err.(*exec.ExitError); err != nil && !ok {
		w.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func (w *world) succeeds(args ...string) {
	w.t.Helper()
	if output, code := w.command(args...); code != 0 {
		w.t.Fatalf("%s: exit %d\n%s", strings.Join(args, " "), code, output)
	}
}

// fails runs one command, which must exit with 1 and say all of this.
func (w *world) fails(args []string, says ...string) {
	w.t.Helper()
	output, code := w.command(args...)
	for _, words := range says {
		if code != 1 || !strings.Contains(output, words) {
			w.t.Errorf("%s: exit %d, want 1 and %q\n%s", strings.Join(args, " "), code, words, output)
		}
	}
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

// query reads all rows: structs by column name, other types from the only column.
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

// eventually waits for a condition. If it stays false, the test fails with what it waited for and the state.
func (w *world) eventually(what string, condition func() bool) {
	w.t.Helper()
	await.Until(w.t, what, condition, w.saw)
}

// saw describes the state for a failed test: the tables, the arrivals and the relays.
func (w *world) saw() string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), await.Scaled(5*time.Second))
	defer cancel()
	var lines []string
	for _, sql := range []string{
		`SELECT format('%s rows wait, the first: %s', count(*), (SELECT to_jsonb(o) - 'payload' - 'payload_bytes' FROM outbox o ORDER BY id LIMIT 1)) FROM outbox`,
		`SELECT format('%s dead letters, the newest: %s', count(*), (SELECT failure_reason || ': ' || last_error FROM outbox_dead_letter ORDER BY dead_at DESC LIMIT 1)) FROM outbox_dead_letter`,
		`SELECT format('slot %s: active_pid %s, confirmed %s, wal_status %s', slot_name, active_pid, confirmed_flush_lsn, wal_status) FROM pg_replication_slots WHERE slot_name = '` + w.slot + `'`,
	} {
		var line string
		if err := w.db.QueryRow(ctx, sql).Scan(&line); err != nil {
			line = firstLine(err.Error())
		}
		lines = append(lines, line)
	}
	for _, l := range w.ledgers {
		lines = append(lines, fmt.Sprintf("queue %s: %d messages have arrived, %d of them duplicates, %d of those not marked",
			l.queue, l.distinct()+l.duplicates(), l.duplicates(), l.unmarkedDuplicates()))
	}
	for _, r := range w.relays {
		state := "has ended"
		if !r.exited() {
			page, status := r.get("/readyz")
			state = fmt.Sprintf("/readyz %d: %s; in flight: %.0f", status, strings.ReplaceAll(strings.TrimSpace(page), "\n", "; "),
				r.metric("cdc_relay_messages_in_flight"))
		}
		lines = append(lines, fmt.Sprintf("relay %d %s", r.cmd.Process.Pid, state))
	}
	return strings.Join(lines, "\n     ")
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

func (w *world) with(setting string) *world {
	other := *w
	other.settings = append(slices.Clone(w.settings), setting)
	return &other
}

// run starts a relay and waits until it is up. The relay is killed at the end of the test.
func (w *world) run(args ...string) *relay {
	w.t.Helper()
	r := w.start(args...)
	w.eventually("the relay is ready", func() bool { return r.ready() || r.exited() })
	if r.exited() {
		w.t.Fatal("the relay has ended")
	}
	return r
}

func (w *world) start(args ...string) *relay {
	w.t.Helper()
	r := &relay{w: w, done: make(chan struct{})}
	r.cmd = exec.Command(w.binary, append([]string{"run", "--log-format", "json"}, args...)...)
	r.cmd.Env = w.env()
	stderr, err := r.cmd.StderrPipe()
	must(w.t, "make a pipe", err)
	must(w.t, "start the relay", r.cmd.Start())
	address := make(chan string, 1)
	go r.readLog(stderr, address)
	w.t.Cleanup(func() {
		log := r.logs() // without the goroutines below
		if w.t.Failed() && !r.exited() {
			_ = r.cmd.Process.Signal(syscall.SIGQUIT) // it prints its goroutines
		} else {
			_ = r.cmd.Process.Kill()
		}
		<-r.done
		if strings.Contains(r.logs(), "WARNING: DATA RACE") {
			w.t.Error("the race detector has found something")
		}
		if w.t.Failed() {
			file := filepath.Join(filepath.Dir(binary), fmt.Sprintf("relay-%d.log", r.cmd.Process.Pid))
			if err := os.WriteFile(file, []byte(r.logs()), 0o600); err != nil {
				w.t.Error(err)
			}
			w.t.Logf("the log of relay %d (whole, with its goroutines, in %s) ends:\n%s", r.cmd.Process.Pid, file, await.Tail(log, 40))
		}
	})
	w.relays = append(w.relays, r)
	r.http = await.Receive(w.t, "the relay says where it listens", address)
	return r
}

func (r *relay) readLog(from io.Reader, address chan<- string) {
	defer close(address) // it may end without printing it
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

func (r *relay) metrics() map[string]float64 {
	values := make(map[string]float64)
	body, _ := r.get("/metrics")
	for line := range strings.Lines(body) {
		if series, text, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			values[series], _ = strconv.ParseFloat(text, 64)
		}
	}
	return values
}

func (r *relay) metric(series string) float64 { return r.metrics()[series] }

func (r *relay) stopsWell() {
	r.w.t.Helper()
	if code := r.stop(); code != 0 {
		r.w.t.Errorf("exit code %d after SIGTERM", code)
	}
}

func (r *relay) stop() int {
	r.w.t.Helper()
	r.signal(syscall.SIGTERM)
	return r.exit()
}

func (r *relay) signal(sig os.Signal) { _ = r.cmd.Process.Signal(sig) }

func (r *relay) exit() int {
	r.w.t.Helper()
	await.Receive(r.w.t, "the relay ends", r.done, r.w.saw)
	return r.cmd.ProcessState.ExitCode()
}

func (r *relay) kill() {
	_ = r.cmd.Process.Kill()
	<-r.done
}

func (r *relay) residentMB() int {
	bytes, err := gauge.PeakMemory(r.cmd.Process.Pid)
	if err != nil {
		r.w.t.Skip("no /proc on this system")
	}
	return int(bytes >> 20)
}

func (w *world) channel() *amqp.Channel {
	w.t.Helper()
	conn := services.DialAMQP(w.t, w.broker)
	channel, err := conn.Channel()
	must(w.t, "open a channel", err)
	return channel
}

func (w *world) declareQueue(name string, args amqp.Table) {
	w.t.Helper()
	if _, err := w.channel().QueueDeclare(name, true, false, false, false, args); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.deleteQueue(name) })
}

// bindExchange declares an exchange that ends with its last binding, and binds a queue to it.
func (w *world) bindExchange(exchange, kind, queue, key string) {
	w.t.Helper()
	channel := w.channel()
	must(w.t, "declare "+exchange, channel.ExchangeDeclare(exchange, kind, false, true, false, false, nil))
	must(w.t, "bind "+queue, channel.QueueBind(queue, key, exchange, false, nil))
}

func (w *world) deleteQueue(name string) {
	conn, err := amqp.Dial(w.broker)
	if err != nil {
		return // the broker was closed with the test
	}
	defer conn.Close()
	if channel, err := conn.Channel(); err == nil {
		_, _ = channel.QueueDelete(name, false, false, false)
	}
}
