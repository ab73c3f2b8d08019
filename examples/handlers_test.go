package examples_test

import (
	"context"
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
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// handlers are those of --publisher exec.
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
			e.Errorf("%v: %s", err, body)
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
	e.Exec(threeMessages)
	e.do("cdc-relay drain --publisher exec -- ./http.sh " + server.URL)
	if len(got) != 1 || !strings.Contains(got[0], `"payload":{"n" : 1},`) {
		e.Errorf("the server received %s", got)
	}
	e.want("SELECT string_agg(routing_key || ' ' || last_error, ',') FROM outbox", "busy handler_rejected: HTTP 503")
	e.want("SELECT string_agg(routing_key || ' ' || last_error, ',') FROM outbox_dead_letter", "bad handler_impossible: HTTP 422")
	e.Exec("TRUNCATE outbox")
	e.Exec(oddMessages)
	e.do("cdc-relay drain --publisher exec -- ./http.sh " + server.URL)
	if len(got) != 3 {
		e.Errorf("the server received %d messages, want 3", len(got))
	}
}

// handRedis lets redis.sh add messages to a stream, and then to a key that is not a stream.
func (e *shop) handRedis() {
	server := startRedis(e)
	handler := "./redis.sh 127.0.0.1 " + server.port + " "
	e.Exec(threeMessages)
	e.do("cdc-relay drain --publisher exec -- " + handler + "orders")
	e.want("SELECT count(*)::text FROM outbox", "0")
	if out := server.cli("XRANGE orders - +"); strings.Count(out, `"message_id"`) != 3 || !strings.Contains(out, `"payload":{"n" : 1},`) {
		e.Errorf("the stream has %s", out)
	}
	e.Exec(oddMessages)
	e.do("cdc-relay drain --publisher exec -- " + handler + "odd")
	e.want("SELECT count(*)::text FROM outbox", "0")
	if out := server.cli("XRANGE odd - +"); len(out) < 140000 {
		e.Errorf("the stream has %d bytes", len(out))
	}
	server.cli("SET other 1")
	e.Exec("INSERT INTO outbox (routing_key, payload) VALUES ('good', '4')")
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
	e.Exec(`INSERT INTO outbox (routing_key, payload) VALUES ('orders', '{"n" : 1}'), ('nowhere', '2')`)
	e.do("cd kafka && go vet ./... && go test -count 1 ./...")
	e.want("SELECT string_agg(routing_key || ' ' || attempts, ',') FROM outbox", "nowhere 1")
}

type redis struct {
	e       *shop
	port    string
	args    []string
	process *exec.Cmd
}

func startRedis(e *shop, args ...string) *redis {
	e.Helper()
	port, err := services.FreePort()
	must(e, err)
	r := &redis{e: e, port: strconv.Itoa(port)}
	r.args = append(args, "--port", r.port, "--bind", "127.0.0.1", "--dir", e.TempDir(), "--save", "")
	e.Cleanup(r.stop)
	r.start()
	return r
}

func (r *redis) start() {
	r.e.Helper()
	r.process = exec.Command("redis-server", r.args...)
	must(r.e, r.process.Start())
	await.Until(r.e, "Redis answers", func() bool {
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

func (r *redis) cli(command string) string {
	r.e.Helper()
	out, err := r.e.command("redis-cli -p " + r.port + " " + command)
	if err != nil {
		r.e.Fatalf("%s: %v\n%s", command, err, out)
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
		{r.stop, r.start, "refused"},
	}
}

// line is a line of the relay for the default exchange. The last of two equal keys counts, so more can replace a key.
func line(routingKey, more string) string {
	return `{"id":1,"message_id":"5f0c4a86-5e0b-4f0c-9b0e-6b1d3c1f9a52","exchange":"","routing_key":"` + routingKey + `","ordering_key":null,` +
		`"headers":null,"properties":null,"created_at":"2026-11-23T10:00:00Z","possible_duplicate":false` + more + `,"payload":[[1],{},{}],"payload_base64":null}`
}

func (e *shop) answers(handler, outcome, detail, line string) {
	e.Helper()
	out, err := e.command(handler + " <<'END'\n" + line + "\nEND")
	var answer struct{ Outcome, Detail string }
	if err == nil {
		err = json.Unmarshal([]byte(out), &answer)
	}
	if err != nil || answer.Outcome != outcome || !strings.Contains(answer.Detail, detail) {
		e.Errorf("%s: %v, %s, want %s: %s", handler, err, out, outcome, detail)
	}
}

const (
	celeryDrain = "cdc-relay drain --publisher exec -- "
	celery      = "/usr/bin/python3 celery_redis.py"
)

// handCelery sends Celery tasks from the outbox to Redis, where a worker runs them.
func (e *shop) handCelery() {
	server := startRedis(e)
	e.env = append(e.env, "CELERY_BROKER_URL=redis://127.0.0.1:"+server.port+"/0",
		"PYTHONPATH=../../clients/python:.", "PYTHONDONTWRITEBYTECODE=1", "C_FORCE_ROOT=1")
	e.priorities(server)
	e.tasks(server)
	e.redisIsDown(server)
	e.noReply(server)
	e.celeryAnswers(server)
}

// place places orders, by Python code that calls place_order.
func (e *shop) place(code string) {
	e.Helper()
	e.do("/usr/bin/python3 -c '\nfrom celery_shop import *\n" + code + "'")
}

// worker runs a Celery worker until all orders have a parcel. It wants these parcels, in an order.
func (e *shop) worker(args, order, want string) {
	e.Helper()
	ctx, cancel := context.WithCancel(e.Context())
	defer cancel()
	worker := exec.CommandContext(ctx, "/usr/bin/python3", append(strings.Fields("-m celery -A celery_shop worker -P solo -l INFO"), strings.Fields(args)...)...)
	var log strings.Builder
	worker.Dir, worker.Env, worker.Stdout, worker.Stderr = e.folder, e.env, &log, &log
	must(e, worker.Start())
	await.Until(e, "the tasks have run", func() bool {
		return tabletest.One[bool](e, "SELECT (SELECT count(*) FROM parcels) >= (SELECT count(*) FROM orders)")
	})
	cancel()
	_ = worker.Wait()
	e.want("SELECT string_agg(order_id::text, ',' ORDER BY "+order+") FROM parcels", want)
	if e.Failed() {
		e.Log(log.String())
	}
	e.Exec("TRUNCATE parcels, orders")
}

// priorities: Redis has a list for each step of priorities, and 0 is the most urgent one.
func (e *shop) priorities(server *redis) {
	e.place("for n, priority in enumerate([9, 5, 0]): place_order(n, priority=priority)")
	e.do(celeryDrain + celery)
	for _, key := range []string{"celery", `$'celery\x06\x163'`, `$'celery\x06\x169'`} {
		if n := server.cli("LLEN " + key); n != "1\n" {
			e.Errorf("%s has %s messages, want 1", key, n)
		}
	}
	e.worker("", "ctid", "2,1,0")
}

// tasks sends tasks in each form, and some through exchanges.
func (e *shop) tasks(server *redis) {
	e.place(`
from kombu import Exchange, Queue
app.conf.task_queues = [Queue("celery"), Queue("mail"), Queue("events", Exchange("shop", type="topic"), "orders.#")]
place_order(1)
place_order(2, serializer="pickle")
place_order(3, compression="zlib")
place_order(4, countdown=3600)
place_order(5, queue="mail")
place_order(6, headers={"tenant": "acme"}, expires=3600)
with app.connection_for_write() as connection: app.amqp.queues["events"](connection.default_channel).declare()
place_order(7, exchange="shop", routing_key="orders.created")
`)
	e.Exec("UPDATE outbox SET available_at = now() WHERE available_at > now()")
	e.do(celeryDrain + celery + " --topic shop celery mail")
	e.want("SELECT count(*)::text FROM outbox", "0")
	if n := server.cli("LLEN events"); n != "1\n" {
		e.Errorf("the queue of the topic exchange has %s messages, want 1", n)
	}
	e.worker("-Q celery,mail,events", "order_id", "1,2,3,4,5,6,7")
}

// redisIsDown: no attempt is charged, and the task runs when Redis is back.
func (e *shop) redisIsDown(server *redis) {
	server.stop()
	e.place("place_order(1)")
	if out, err := e.command(celeryDrain + celery); err == nil || !strings.Contains(out, "refused") {
		e.Errorf("drain without Redis: %v\n%s", err, out)
	}
	e.want("SELECT attempts::text FROM outbox", "0")
	server.start()
	e.do(celeryDrain + celery)
	e.worker("", "order_id", "1")
}

// noReply kills Redis after it has got the task and before it answers.
func (e *shop) noReply(server *redis) {
	server.cli("CLIENT PAUSE 100000000 WRITE")
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		e.answers(celery, "unknown", "", line("celery", ""))
	}()
	await.Until(e, "Redis has got the task", func() bool {
		return strings.Contains(server.cli("INFO clients"), "blocked_clients:1")
	})
	server.stop()
	<-answered
	server.start()
}

// celeryAnswers checks single answers of the handler.
func (e *shop) celeryAnswers(server *redis) {
	e.answers(celery, "confirmed", "", line("celery", ""))
	e.answers(celery+" mail", "rejected", "no queue celery", line("celery", ""))
	e.answers(celery, "rejected", "no queue is bound", line("celery", `,"exchange":"shop"`))
	e.answers(celery+" --fanout shop", "confirmed", "", line("celery", `,"exchange":"shop"`))
	e.answers(celery, "impossible", "", line("celery", `,"headers":{"deep":`+strings.Repeat("[", 5_000)+strings.Repeat("]", 5_000)+`}`))
	e.answers(celery, "impossible", "", line("celery", `,"headers":{`))
	e.answers(celery, "confirmed", "", line("second", `,"possible_duplicate":true`))
	stored := server.cli("LINDEX second 0")
	for _, part := range []string{`"x-possible-duplicate": true`, `"message_id": "5f0c`, `"body": "W1sxXSx7fSx7fV0="`, `"content-type": "application/json"`} {
		if !strings.Contains(stored, part) {
			e.Errorf("Redis has %s, want %s in it", stored, part)
		}
	}
	server.cli("SET text 1")
	e.answers(celery, "rejected", "WRONGTYPE", line("text", ""))
	for _, f := range server.faults() {
		f.begin()
		e.answers(celery, "not_sent", f.says, line("celery", ""))
		f.end()
	}
	server.cli("ACL SETUSER app on '>s3cr3t' '~celery*' '&*' +@all")
	limited := "CELERY_BROKER_URL=redis://app:s3cr3t@127.0.0.1:" + server.port + " " + celery
	e.answers(limited, "confirmed", "", line("celery", ""))
	e.answers(limited, "not_sent", "no permissions", line("mail", ""))
	wrong := "CELERY_BROKER_URL=redis://:wrong@127.0.0.1:" + server.port + " " + celery
	server.cli("CONFIG SET requirepass s3cr3t")
	e.answers(wrong, "not_sent", "invalid username-password pair", line("celery", ""))
	e.answers(strings.Replace(wrong, "wrong", "s3cr3t", 1), "confirmed", "", line("celery", ""))
	if out, err := e.command("CELERY_BROKER_URL=rediscluster://127.0.0.1 " + celery); err == nil || !strings.Contains(out, "No such transport") {
		e.Errorf("with a wrong URL: %v\n%s", err, out)
	}
	e.clusterAndSentinel()
}

// clusterAndSentinel: kombu finds the master by Sentinel. It has no transport for Redis Cluster.
func (e *shop) clusterAndSentinel() {
	master := startRedis(e)
	config := filepath.Join(e.TempDir(), "sentinel.conf") // which Sentinel changes
	must(e, os.WriteFile(config, []byte("sentinel monitor shop 127.0.0.1 "+master.port+" 1\n"), 0o600))
	sentinel := startRedis(e, config, "--sentinel")
	with := "CELERY_BROKER_URL=sentinel://127.0.0.1:" + sentinel.port + ` CELERY_BROKER_TRANSPORT_OPTIONS='{"master_name": "%s"}' ` + celery
	e.answers(strings.Replace(with, "%s", "shop", 1), "confirmed", "", line("celery", ""))
	if n := master.cli("LLEN celery"); n != "1\n" {
		e.Errorf("the master has %s messages, want 1", n)
	}
	e.answers(strings.Replace(with, "%s", "other", 1), "not_sent", "No master found", line("celery", ""))
	cluster := startRedis(e, "--cluster-enabled", "yes")
	e.answers("CELERY_BROKER_URL=redis://127.0.0.1:"+cluster.port+" "+celery, "not_sent", "not served", line("celery", ""))
}
