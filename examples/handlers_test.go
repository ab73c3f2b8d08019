package examples_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// example is a handler for --publisher exec.
type example struct {
	name, needs string
	run         func(*shop)
}

func handlers() []example {
	const redis = "redis-server --version && redis-cli --version && "
	return []example{
		{"exec/http", "curl --version", (*shop).handHTTP},
		{"exec/redis", redis + "jq --version", (*shop).handRedis},
		{"exec/celery", redis + "/usr/bin/python3 -c 'import celery, kombu, psycopg, redis'", (*shop).handCelery},
		{"exec/kafka", "go version && go -C kafka mod download", (*shop).handKafka},
	}
}

// oddMessages are too deep for jq, and too long for an argument of a program.
const oddMessages = `INSERT INTO outbox (routing_key, payload) VALUES ('deep', (repeat('[', 300) || repeat(']', 300))::json), ('long', to_json(repeat('x', 140000)))`

const threeMessages = `INSERT INTO outbox (routing_key, payload) VALUES ('good', '{"n" : 1}'), ('busy', '2'), ('bad', '3')`

// handHTTP lets http.sh post messages to a server that accepts one of them.
func (e *shop) handHTTP() {
	var mu sync.Mutex
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || !strings.Contains(string(body), r.Header.Get("Idempotency-Key")) {
			e.t.Errorf("%v: %s", err, body)
		}
		switch {
		case strings.Contains(string(body), `"busy"`):
			w.WriteHeader(http.StatusServiceUnavailable)
		case strings.Contains(string(body), `"bad"`):
			w.WriteHeader(http.StatusUnprocessableEntity)
		default:
			mu.Lock()
			defer mu.Unlock()
			got = append(got, string(body))
		}
	}))
	defer server.Close()
	e.exec(threeMessages)
	e.do("cdc-relay drain --publisher exec -- ./http.sh " + server.URL)
	if len(got) != 1 || !strings.Contains(got[0], `"payload":{"n" : 1},`) {
		e.t.Errorf("the server received %s", got)
	}
	e.want("SELECT string_agg(routing_key || ' ' || last_error, ',') FROM outbox", "busy handler_rejected: HTTP 503")
	e.want("SELECT string_agg(routing_key || ' ' || last_error, ',') FROM outbox_dead_letter", "bad handler_impossible: HTTP 422")
	e.exec("TRUNCATE outbox")
	e.exec(oddMessages)
	e.do("cdc-relay drain --publisher exec -- ./http.sh " + server.URL)
	if len(got) != 3 {
		e.t.Errorf("the server received %d messages, want 3", len(got))
	}
}

// handRedis lets redis.sh add messages to a stream, and then to a key that is not a stream.
func (e *shop) handRedis() {
	server := startRedis(e)
	handler := "./redis.sh 127.0.0.1 " + server.port + " "
	e.exec(threeMessages)
	e.do("cdc-relay drain --publisher exec -- " + handler + "orders")
	e.want("SELECT count(*)::text FROM outbox", "0")
	if out := server.cli("XRANGE orders - +"); strings.Count(out, `"message_id"`) != 3 || !strings.Contains(out, `"payload":{"n" : 1},`) {
		e.t.Errorf("the stream has %s", out)
	}
	e.exec(oddMessages)
	e.do("cdc-relay drain --publisher exec -- " + handler + "odd")
	e.want("SELECT count(*)::text FROM outbox", "0")
	if out := server.cli("XRANGE odd - +"); len(out) < 140000 {
		e.t.Errorf("the stream has %d bytes", len(out))
	}
	server.cli("SET other 1")
	e.exec("INSERT INTO outbox (routing_key, payload) VALUES ('good', '4')")
	e.do("cdc-relay drain --publisher exec -- " + handler + "other")
	e.want("SELECT left(last_error, 28) FROM outbox", "handler_rejected: WRONGTYPE ")
	for _, f := range server.faults() {
		f.begin()
		e.answers(handler+"orders", "not_sent", f.says, line("orders", ""))
		f.end()
	}
}

// handKafka runs the handler's own tests. One of them lets a relay publish these messages.
func (e *shop) handKafka() {
	e.exec(`INSERT INTO outbox (routing_key, payload) VALUES ('orders', '{"n" : 1}'), ('nowhere', '2')`)
	e.do("cd kafka && go vet ./... && go test -count 1 ./...")
	e.want("SELECT string_agg(routing_key || ' ' || attempts, ',') FROM outbox", "nowhere 1")
}

// redis is a Redis server of one test.
type redis struct {
	e       *shop
	port    string
	process *exec.Cmd
}

// startRedis starts a server, and stops it after the test.
func startRedis(e *shop, args ...string) *redis {
	e.t.Helper()
	port, err := services.FreePort()
	must(e.t, err)
	r := &redis{e: e, port: strconv.Itoa(port)}
	e.t.Cleanup(r.stop)
	r.start(append([]string{"--save", ""}, args...)...)
	return r
}

// startSentinel starts a Sentinel for one master, "shop".
func startSentinel(e *shop, master *redis) *redis {
	e.t.Helper()
	port, err := services.FreePort()
	config := filepath.Join(e.t.TempDir(), "sentinel.conf") // which Sentinel changes
	if err == nil {
		err = os.WriteFile(config, []byte("sentinel monitor shop 127.0.0.1 "+master.port+" 1\n"), 0o600)
	}
	must(e.t, err)
	r := &redis{e: e, port: strconv.Itoa(port)}
	e.t.Cleanup(r.stop)
	r.start(config, "--sentinel")
	return r
}

func (r *redis) start(args ...string) {
	r.e.t.Helper()
	args = append(args, "--port", r.port, "--bind", "127.0.0.1", "--dir", r.e.t.TempDir())
	r.process = exec.Command("redis-server", args...)
	if err := r.process.Start(); err != nil {
		r.e.t.Fatal(err)
	}
	await.Until(r.e.t, "Redis answers", func() bool {
		out, err := r.e.command("redis-cli -p " + r.port + " PING")
		return err == nil && !strings.Contains(out, "refused")
	})
}

// stop kills the server, which stores nothing.
func (r *redis) stop() {
	if r.process != nil {
		_ = r.process.Process.Signal(syscall.SIGKILL)
		_ = r.process.Wait()
		r.process = nil
	}
}

// cli runs a command of Redis and returns its output.
func (r *redis) cli(command string) string {
	r.e.t.Helper()
	out, err := r.e.command("redis-cli -p " + r.port + " " + command)
	if err != nil {
		r.e.t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return out
}

// fault is a state of Redis in which it stores nothing.
type fault struct {
	begin, end func()
	says       string
}

func (r *redis) faults() []fault {
	run := func(command string) func() { return func() { r.cli(command) } }
	return []fault{
		{run("CONFIG SET maxmemory 1"), run("CONFIG SET maxmemory 0"), "maxmemory"},
		{run("REPLICAOF 127.0.0.1 1"), run("REPLICAOF NO ONE"), "read only replica"},
		{run("CONFIG SET requirepass s3cr3t"), run("-a s3cr3t CONFIG SET requirepass ''"), "Authentication required"},
		{r.stop, func() { r.start("--save", "") }, "refused"},
	}
}

// line is a line of the relay for the default exchange. The last of two equal keys counts, so more can replace a key.
func line(routingKey, more string) string {
	return `{"id":1,"message_id":"5f0c4a86-5e0b-4f0c-9b0e-6b1d3c1f9a52","exchange":"","routing_key":"` + routingKey + `","ordering_key":null,` +
		`"headers":null,"properties":null,"created_at":"2026-11-23T10:00:00Z","possible_duplicate":false` + more + `,"payload":[[1],{},{}],"payload_base64":null}`
}

// answers gives a handler one line, and wants one answer.
func (e *shop) answers(handler, outcome, detail, line string) {
	e.t.Helper()
	out, err := e.command(handler + " <<'END'\n" + line + "\nEND")
	var answer struct{ Outcome, Detail string }
	if err == nil {
		err = json.Unmarshal([]byte(out), &answer)
	}
	if err != nil || answer.Outcome != outcome || !strings.Contains(answer.Detail, detail) {
		e.t.Errorf("%s: %v, %s, want %s: %s", handler, err, out, outcome, detail)
	}
}
