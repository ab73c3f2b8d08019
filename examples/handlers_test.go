package examples_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"

	"github.com/cdc-relay/cdc-relay/test/await"
)

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
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		e.t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	_ = listener.Close()
	server := exec.CommandContext(e.t.Context(), "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "")
	if err := server.Start(); err != nil {
		e.t.Fatal(err)
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	await.Until(e.t, "Redis answers", func() bool {
		_, err := e.command("redis-cli -p " + port + " PING")
		return err == nil
	})
	e.exec(threeMessages)
	e.do("cdc-relay drain --publisher exec -- ./redis.sh 127.0.0.1 " + port + " orders")
	e.want("SELECT count(*)::text FROM outbox", "0")
	if out, err := e.command("redis-cli -p " + port + " XRANGE orders - +"); err != nil || strings.Count(out, `"message_id"`) != 3 || !strings.Contains(out, `"payload":{"n" : 1},`) {
		e.t.Errorf("%v: %s", err, out)
	}
	e.exec(oddMessages)
	e.do("cdc-relay drain --publisher exec -- ./redis.sh 127.0.0.1 " + port + " odd")
	e.want("SELECT count(*)::text FROM outbox", "0")
	if out, err := e.command("redis-cli -p " + port + " XRANGE odd - + | tr -d '\\n' | wc -c"); err != nil || len(out) < len("140000\n") {
		e.t.Errorf("%v: the stream has %s bytes", err, out)
	}
	e.do("redis-cli -p " + port + " SET other 1")
	e.exec("INSERT INTO outbox (routing_key, payload) VALUES ('good', '4')")
	e.do("cdc-relay drain --publisher exec -- ./redis.sh 127.0.0.1 " + port + " other")
	e.want("SELECT left(last_error, 28) FROM outbox", "handler_rejected: WRONGTYPE ")
}
