package main

import (
	"bytes"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/cdc-relay/cdc-relay/test/services"
)

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
		shown = showsExemplar(t, address+"/metrics")
	}
	if !shown {
		t.Error("no exemplar on the page of metrics")
	}
	relay.stopsWell(t)
	return d
}

// showsExemplar looks for the trace at the latency metrics, in the OpenMetrics format.
func showsExemplar(t *testing.T, url string) bool {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	must(t, err)
	request.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	response, err := client.Do(request)
	must(t, err)
	defer func() { _ = response.Body.Close() }()
	page, err := io.ReadAll(response.Body)
	must(t, err)
	return bytes.Contains(page, []byte(`# {trace_id="`+traceOfTest+`"}`))
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

func TestAWrongExporterIsAUsageError(t *testing.T) {
	t.Setenv("OTEL_TRACES_EXPORTER", "zipkin")
	r := cdcRelay(t, environment{"CDC_RELAY_DATABASE_URL": "postgres://localhost/shop", "CDC_RELAY_AMQP_URL": "amqp://localhost"}, "run", "--http-addr", "")
	if r.code != exitUsage || !strings.Contains(r.stderr, "OTEL_TRACES_EXPORTER=zipkin") {
		t.Errorf("got %d, %s", r.code, r.stderr)
	}
}
