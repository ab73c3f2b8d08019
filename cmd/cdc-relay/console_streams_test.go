package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/terminal"
	"github.com/cdc-relay/cdc-relay/test/await"
)

// serveConsole serves a console in this process.
func serveConsole(t *testing.T, env environment, change func(*console)) (at string) {
	t.Helper()
	cfg := defaultConfig()
	cfg.httpAddr, cfg.publisher, cfg.amqpURL = "", "amqp", env["CDC_RELAY_AMQP_URL"]
	cfg.relay.DatabaseURL = env["CDC_RELAY_DATABASE_URL"]
	p := &process{
		terminal:  terminal.New(nil, t.Output(), t.Output(), false),
		lookupEnv: env.lookup,
		environ:   env.pairs,
	}
	s, err := p.newConsole(cfg)
	if err != nil {
		t.Fatal(err)
	}
	change(s)
	running, stop := context.WithCancel(await.Context(t))
	server := httptest.NewServer(s.handler(running))
	t.Cleanup(func() {
		stop()
		server.CloseClientConnections()
		server.Close()
		s.checks.running.Wait()
		s.desks.close(context.WithoutCancel(running))
	})
	return server.URL
}

// A client with many pages keeps nobody out.
func TestTheOldestStreamOfTheClientWithTheMostEnds(t *testing.T) {
	s := new(streams)
	ended := func(ctx context.Context) bool { return ctx.Err() != nil }
	other, _ := s.open(t.Context(), "other")
	var hogs []context.Context
	for range 3 * consoleStreams {
		ctx, _ := s.open(t.Context(), "hog")
		hogs = append(hogs, ctx)
	}
	late, done := s.open(t.Context(), "late")
	if ended(other) || ended(late) || len(s.all) != consoleStreams {
		t.Errorf("%d streams; that of another client ended: %v, %v", len(s.all), ended(other), ended(late))
	}
	const left = consoleStreams - 2
	for i, ctx := range hogs {
		if ended(ctx) != (i < len(hogs)-left) {
			t.Errorf("stream %d of %d ended: %v", i, len(hogs), ended(ctx))
		}
	}
	if done(); len(s.all) != consoleStreams-1 {
		t.Errorf("%d streams after one has ended", len(s.all))
	}
	s = new(streams)
	first, _ := s.open(t.Context(), "0")
	for i := range consoleStreams {
		if ctx, _ := s.open(t.Context(), fmt.Sprint(i+1)); ended(ctx) {
			t.Errorf("the newest stream %d ended", i)
		}
	}
	if !ended(first) {
		t.Error("each client has one stream, and the first one did not end")
	}
}

func TestIdleStreamsLockNobodyOut(t *testing.T) {
	at := serveConsole(t, environment{"CDC_RELAY_DATABASE_URL": someDatabase}, func(*console) {})
	open := func() *bufio.Scanner {
		r, err := http.NewRequestWithContext(await.Context(t), http.MethodGet, at+"/events?of=%2F", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { response.Body.Close() })
		if response.StatusCode != http.StatusOK {
			t.Fatalf("status %d", response.StatusCode)
		}
		return bufio.NewScanner(response.Body)
	}
	reads := func(lines *bufio.Scanner, text string) {
		for lines.Scan() {
			if strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Errorf("the stream ended without %q: %v", text, lines.Err())
	}
	first := open()
	for range consoleStreams {
		reads(open(), "data: ")
	}
	reads(first, "event: displaced")
	for _, method := range []string{http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPost} {
		if status, _ := fetch(t, method, at+"/events?of=%2F", nil); status != http.StatusMethodNotAllowed {
			t.Errorf("%s: status %d", method, status)
		}
	}
}

// Nobody waits for a server that accepts connections and does not answer, except those who ask for its data.
func TestAHangingServerDelaysNoOtherPage(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var accepted atomic.Int32
	var conns sync.Map
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			conns.Store(conn, nil)
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		conns.Range(func(conn, _ any) bool { conn.(net.Conn).Close(); return true })
	})
	env := environment{"CDC_RELAY_DATABASE_URL": someDatabase, "CDC_RELAY_AMQP_URL": "amqp://" + listener.Addr().String()}
	var s *console
	at := serveConsole(t, env, func(c *console) { s, c.checkWait = c, 0 })
	for range cap(s.desks.pages) {
		d := <-s.desks.pages // all are busy
		t.Cleanup(func() { s.desks.pages <- d })
	}
	for range 20 {
		if status, body := fetch(t, http.MethodGet, at+"/check", nil); status != http.StatusOK || !strings.Contains(body, "has been running for") {
			t.Fatalf("status %d while the check runs:\n%s", status, body)
		}
	}
	await.Until(t, "the check connects", func() bool { return accepted.Load() > 0 })
	if status, _ := fetch(t, http.MethodGet, at+"/", nil); status != http.StatusOK {
		t.Errorf("the overview: status %d", status)
	}
	if !s.checks.run() || accepted.Load() != 1 {
		t.Errorf("the check runs: %v; %d connections to RabbitMQ", s.checks.run(), accepted.Load())
	}
}

// Each filter either selects what it says, or is an error that says what is wrong.
func TestUnreadableFiltersAreTheMistakeOfTheRequest(t *testing.T) {
	env, db := fresh(t)
	want(t, cdcRelay(t, env, "setup", "--mode", "poll", "--keep-published", "1h"), exitDone)
	execute(t, db, `INSERT INTO outbox (routing_key, payload) VALUES ('orders.created', '1')`)
	at := serveConsole(t, env, func(s *console) { s.cfg.consoling.allowChanges = true })
	for _, path := range []string{"/waiting", "/dead-letters", "/published", "/change?do=purge", "/change?do=requeue", "/change?do=retry"} {
		for _, query := range []string{
			"routing-key=%00", "routing-key=%ff", "exchange=a%00b", "exchange=%c3%28", "ordering-key=%ed%a0%80", "ordering-key=%f8%88%80%80%80",
			"older-than=7%20d", "older-than=-1h", "newer-than=0s", "older-than=2026-13-01", "newer-than=1000000d", "older-than=1h%00",
			"routingkey=x", "limit=-1", "routing-key=a&routing-key=b", "routing-key=%zz", "state=nothing", "id=1e3%00", "x;y=1", "%ff=1", "id=9223372036854775808",
		} {
			separator := "?"
			if strings.Contains(path, "?") {
				separator = "&"
			}
			if status, body := fetch(t, http.MethodGet, at+path+separator+query, nil); status != http.StatusBadRequest || strings.Contains(body, "SQLSTATE") {
				t.Errorf("%s%s%s: status %d\n%s", path, separator, query, status, body)
			}
		}
	}
	cursor := func(text string) string { return "after=" + base64.RawURLEncoding.EncodeToString([]byte(text)) }
	for path, status := range map[string]int{
		"/change?do=purge&id=1e3": 400, "/change?do=purge&id=9223372036854775808": 400, "/change?do=purge&id=": 400, "/change?do=purge&id=-1": 200,
		"/change?do=purge&id=1%00": 400, "/change?do=purge&state=retrying": 400, "/change?do=drop": 503,
		"/waiting?older-than=2026-11-01&newer-than=2w": 200, "/waiting?older-than=0001-01-01": 200, "/dead-letters?newer-than=9999-12-31T23:59:59Z": 200,
		"/published?older-than=1d12h": 200, "/published?reason=nack": 400, "/waiting?after=x": 400, "/keys?routing-key=x": 400, "/message?id=1&id=2": 400,
		"/message?id=%00": 400, "/message?id=%ff": 400, "/message?id=..%2F..%2Fetc": 400, "/..%2f..%2fetc/passwd": 404,
		"/waiting?routing-key=" + strings.Repeat("x", 8000):                                       200,
		"/waiting?state=due&" + cursor(`{"l":"r.available_at, r.id","t":"x"}`):                    400,
		"/dead-letters?" + cursor(`{"l":"r.dead_at DESC, r.id DESC","t":"2026-99-01 00:00:00Z"}`): 400,
		"/keys?" + cursor(`{"l":"keys","k":"\u0000"}`):                                            400,
	} {
		got, body := fetch(t, http.MethodGet, at+path, nil)
		if got != status || strings.Contains(body, "SQLSTATE") {
			t.Errorf("%.100s: status %d, want %d\n%s", path, got, status, body)
		}
	}
	if _, body := fetch(t, http.MethodGet, at+"/waiting?routing-key="+url.QueryEscape("orders.*"), nil); !strings.Contains(body, "the * in &#34;orders.*&#34; is no wildcard") {
		t.Errorf("a filter with a wildcard:\n%s", body)
	}
}
