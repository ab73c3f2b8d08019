package examples_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
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
