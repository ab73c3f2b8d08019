package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// fullPipe returns a pipe that nobody reads and that takes nothing more, and its reader.
func fullPipe(t *testing.T) (reader, writer *os.File) {
	t.Helper()
	reader, writer, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() { _ = reader.Close(); _ = writer.Close() })
	for {
		must(t, writer.SetWriteDeadline(time.Now().Add(10*time.Millisecond)))
		if _, err := writer.Write(make([]byte, 4096)); errors.Is(err, os.ErrDeadlineExceeded) {
			return reader, writer
		}
	}
}

// A relay whose log nobody reads publishes, and ends when it is told to.
func TestTheLogNeverStopsTheRelay(t *testing.T) {
	t.Parallel()
	_, unread := fullPipe(t)
	gone, closed, err := os.Pipe()
	must(t, err)
	_ = gone.Close()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("this system has no full device")
	}
	t.Cleanup(func() { _ = closed.Close(); _ = full.Close() })
	for _, test := range []struct {
		stderr *os.File
		name   string
		flags  []string
	}{
		{unread, "nobody reads", nil},
		{unread, "nobody reads the text", []string{"--log-format", "text", "--log-level", "debug"}},
		{closed, "the reader is gone", nil},
		{full, "the disk is full", []string{"--log-level", "debug"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			env, db := withTables(t)
			env["CDC_RELAY_AMQP_URL"] = services.VHost(t)
			port, err := services.FreePort()
			must(t, err)
			address := fmt.Sprintf("127.0.0.1:%d", port)
			c := startSilent(t, test.stderr, env, append([]string{"run", "--http-addr", address}, test.flags...)...)
			// Each of these rows is rejected, and logged.
			execute(t, db, `INSERT INTO outbox (routing_key, payload) SELECT 'nowhere', '1' FROM generate_series(1, 500)`)
			await.Until(t, "all rows are rejected", func() bool {
				var left int
				err := db.QueryRow(t.Context(), `SELECT count(*) FROM outbox WHERE attempts = 0`).Scan(&left)
				return err == nil && left == 0
			})
			await.Until(t, "the relay is ready", func() bool {
				return strings.HasPrefix(page(t, "http://"+address+"/readyz"), "200 ")
			})
			drops := test.stderr != unread // what nobody reads fits into the buffer
			if got := page(t, "http://"+address+"/metrics"); strings.Contains(got, "\ncdc_relay_log_lines_dropped_total 0\n") == drops {
				t.Errorf("dropped lines are counted wrong: %s", got)
			}
			must(t, c.Process.Signal(syscall.SIGTERM))
			if err := c.Wait(); err != nil {
				t.Errorf("the relay ended with: %v", err)
			}
		})
	}
}

// A command that cannot print its error ends with the second signal.
func TestASecondSignalEndsAProcessWhoseErrorsNobodyReads(t *testing.T) {
	t.Parallel()
	_, unread := fullPipe(t)
	for _, args := range [][]string{{"run"}, {"setup", "--unknown"}, {"stats"}} {
		c := startSilent(t, unread, environment{"CDC_RELAY_DATABASE_URL": "postgres://127.0.0.1:1/shop", "CDC_RELAY_AMQP_URL": "amqp://127.0.0.1:1"}, args...)
		done := make(chan error, 1)
		go func() { done <- c.Wait() }()
		await.Until(t, fmt.Sprintf("%v ends", args), func() bool {
			_ = c.Process.Signal(syscall.SIGTERM)
			return len(done) > 0
		})
	}
}

// OpenTelemetry and net/http have loggers of their own, which write text to the standard error.
func TestLibrariesWriteToTheLogWithoutSecrets(t *testing.T) {
	t.Parallel()
	collector, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer collector.Close()
	go func() {
		for {
			conn, err := collector.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 64<<10))
			_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 500 password=s3cr3t\r\n"))
		}
	}()
	env, db := fresh(t)
	env["CDC_RELAY_PUBLISHER"] = "stdout"
	env["OTEL_EXPORTER_OTLP_ENDPOINT"], env["OTEL_BSP_SCHEDULE_DELAY"] = "http://"+collector.Addr().String(), "10"
	env["OTEL_EXPORTER_OTLP_HEADERS"] = "Authorization Bearer s3cr3t"
	want(t, cdcRelay(t, env, "setup"), exitDone)
	relay := start(t, env, "run", "--http-addr", "127.0.0.1:0")
	execute(t, db, `INSERT INTO outbox (routing_key, payload, headers) VALUES ('orders', '1', $1)`, traceContext())
	var lines []string
	for !strings.Contains(strings.Join(lines, ""), "Unsolicited response") {
		lines = append(lines, await.Receive(t, "net/http logs", relay.lines))
	}
	relay.signal(t, syscall.SIGTERM)
	for line := range relay.lines {
		lines = append(lines, line)
	}
	for _, line := range lines {
		if !json.Valid([]byte(line)) || strings.Contains(line, "s3cr3t") {
			t.Errorf("got %s", line)
		}
	}
	if !strings.Contains(strings.Join(lines, ""), "parse headers") {
		t.Errorf("OpenTelemetry said nothing:\n%s", strings.Join(lines, "\n"))
	}
}

// Another writer to the standard error could block, leak a secret, or break a log of JSON.
func TestOnlyTheTerminalWritesToTheStandardStreams(t *testing.T) {
	t.Parallel()
	elsewhere := regexp.MustCompile(`^(os\.Std(out|err)|fmt\.Print.*|log\.(Print|Fatal|Panic|SetOutput|Default).*|slog\.(Debug|Info|Warn|Error)(Context)?)$`)
	files := token.NewFileSet()
	for name, file := range sources(t, files) {
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && filepath.Base(name) != "main.go" {
				if of, ok := s.X.(*ast.Ident); ok && of.Obj == nil && elsewhere.MatchString(of.Name+"."+s.Sel.Name) {
					t.Errorf("%s: %s.%s", files.Position(s.Pos()), of.Name, s.Sel.Name)
				}
			}
			return true
		})
	}
}

// startSilent starts a process with this standard error.
func startSilent(t *testing.T, stderr *os.File, env environment, args ...string) *exec.Cmd {
	t.Helper()
	c := program(t, env, args...)
	c.Stderr = stderr
	must(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill() })
	return c
}

// A file of --liveness-file on a file system that hangs, or a library that does not return.
func TestAPartThatHangsDoesNotKeepTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopping, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, stop)
		hangs := make(chan error)
		defer close(hangs)
		began := time.Now()
		if err := waitForEnd(stopping, endGrace, func() error { return <-hangs }); err == nil || time.Since(began) != time.Hour+endGrace {
			t.Errorf("got %v after %s", err, time.Since(began))
		}
	})
}

// collected receives spans by OTLP over HTTP.
type collected struct {
	mu    sync.Mutex
	spans []*spans.Span
}

func (c *collected) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var export collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &export)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, group := range export.GetResourceSpans() {
		for _, scope := range group.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

const (
	traceOfTest  = "4bf92f3577b34da6a3ce929d0e0e4736"
	parentOfTest = "00f067aa0ba902b7"
)

// traceContext are the headers that carry a trace through the outbox.
func traceContext() map[string]string {
	return map[string]string{
		"traceparent": "00-" + traceOfTest + "-" + parentOfTest + "-01", "tracestate": "vendor=a,other=b",
		"baggage": "userId=alice,serverNode=DF%2028", "sentry-trace": traceOfTest + "-" + parentOfTest + "-1",
	}
}

// relayTraced lets a relay publish a message with a trace, and stops it. Rows inserted right after its start may be
// published from the table, without a latency; then other rows follow.
func relayTraced(t *testing.T, more environment) amqp.Delivery {
	t.Helper()
	env, db := fresh(t)
	env["CDC_RELAY_AMQP_URL"] = services.VHost(t)
	for name, value := range more {
		env[name] = value
	}
	arrived := arrivals(t, env["CDC_RELAY_AMQP_URL"], "orders", "")
	want(t, cdcRelay(t, env, "setup"), exitDone)
	relay := start(t, env, "run")
	address := relay.httpURL(t)
	relay.await(t, `"streaming"`)
	var d amqp.Delivery
	shown := false
	for deadline := time.Now().Add(20 * time.Second); !shown && time.Now().Before(deadline); {
		execute(t, db, `INSERT INTO outbox (routing_key, payload, headers) VALUES ('orders', '1', $1)`, traceContext())
		d = <-arrived
		_, metrics := fetch(t, http.MethodGet, address+"/metrics", nil, "Accept", "application/openmetrics-text; version=1.0.0")
		shown = strings.Contains(metrics, `# {trace_id="`+traceOfTest+`"}`)
	}
	if !shown {
		t.Error("no exemplar on the page of metrics")
	}
	relay.stopsWell(t)
	return d
}

// Trace headers of the application arrive unchanged, whether or not the relay records spans. Its spans belong to that
// trace.
func TestTraceContextPassesThroughUnchanged(t *testing.T) {
	t.Parallel()
	for _, tracing := range []bool{false, true} {
		var got collected
		server := httptest.NewServer(&got)
		defer server.Close()
		env := environment{}
		if tracing {
			env["OTEL_EXPORTER_OTLP_ENDPOINT"] = server.URL
		}
		d := relayTraced(t, env)
		for name, want := range traceContext() {
			if d.Headers[name] != want {
				t.Errorf("tracing %v: %s is %q, want %q", tracing, name, d.Headers[name], want)
			}
		}
		delete(d.Headers, "x-possible-duplicate") // a message that leaves late on a busy machine has it
		if len(d.Headers) != len(traceContext()) {
			t.Errorf("tracing %v: headers are %v", tracing, d.Headers)
		}
		if tracing != (len(got.spans) > 0) {
			t.Errorf("tracing %v: %d spans", tracing, len(got.spans))
		}
		for _, s := range got.spans {
			if hex.EncodeToString(s.GetTraceId()) != traceOfTest || hex.EncodeToString(s.GetParentSpanId()) != parentOfTest || s.GetName() != "publish amq.default" {
				t.Errorf("the span is %v", s)
			}
		}
	}
}
