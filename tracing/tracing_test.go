package tracing

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/protobuf/proto"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// receiver receives spans by OTLP, over HTTP and gRPC.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	mu       sync.Mutex
	spans    []*spans.Span
	resource map[string]string
}

// Export implements the gRPC service.
func (r *receiver) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, group := range request.GetResourceSpans() {
		r.resource = attributes(group.GetResource().GetAttributes())
		for _, scope := range group.GetScopeSpans() {
			r.spans = append(r.spans, scope.GetSpans()...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	raw, err := io.ReadAll(request.Body)
	var export collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(raw, &export)
	}
	if err != nil || request.URL.Path != "/v1/traces" {
		http.Error(w, fmt.Sprint(request.URL.Path, err), http.StatusBadRequest)
		return
	}
	_, _ = r.Export(request.Context(), &export)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func attributes(list []*common.KeyValue) map[string]string {
	all := make(map[string]string)
	for _, one := range list {
		switch v := one.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			all[one.GetKey()] = v.StringValue
		case *common.AnyValue_IntValue:
			all[one.GetKey()] = fmt.Sprint(v.IntValue)
		case *common.AnyValue_BoolValue:
			all[one.GetKey()] = fmt.Sprint(v.BoolValue)
		}
	}
	return all
}

// plainly removes the OTEL variables of the test's own environment.
func plainly(t *testing.T) {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
}

const parent = `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`

func message(headers string) *outbox.Message {
	now, shop := time.Now(), "shop"
	return &outbox.Message{
		Row: outbox.Row{
			ID:         7,
			MessageID:  outbox.UUID{0: 1, 15: 2},
			Exchange:   &shop,
			RoutingKey: "orders.created",
			Payload:    []byte("12345"),
			Attempts:   2,
			Headers:    []byte(headers),
		},
		CommittedAt: now.Add(-30 * time.Millisecond),
		TakenAt:     now.Add(-20 * time.Millisecond),
		SentAt:      now.Add(-10 * time.Millisecond),
	}
}

func tracer(t *testing.T) *Tracer {
	t.Helper()
	tr := FromEnvironment(t.Context(), Config{Version: "v1.2.3", Logger: slog.New(slog.DiscardHandler)})
	if tr == nil {
		t.Fatal("no tracer")
	}
	return tr
}

func shutdown(t *testing.T, tr *Tracer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), await.Hang())
	defer cancel()
	if err := tr.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

func collect(t *testing.T) *receiver {
	t.Helper()
	plainly(t)
	got := new(receiver)
	server := httptest.NewServer(got)
	t.Cleanup(server.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	return got
}

func TestASpanCoversTheTimeFromCommitToConfirm(t *testing.T) {
	got := collect(t)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	tr := tracer(t)
	m := message(`{"traceparent": "` + parent + `", "tracestate": "vendor=value"}`)
	before := *m
	tr.Delivered(outbox.Result{Message: m, Outcome: outbox.Confirmed})
	tr.Delivered(outbox.Result{Message: message(`{"traceparent": "` + parent + `"}`), Outcome: outbox.Rejected, Reason: outbox.ReasonUnroutable, Detail: "no queue"})
	shutdown(t, tr)
	if got.resource["service.name"] != "cdc-relay" || got.resource["service.version"] != "v1.2.3" || got.resource["deployment.environment.name"] != "test" {
		t.Errorf("resource: %v", got.resource)
	}
	if len(got.spans) != 2 {
		t.Fatalf("got %d spans: %v", len(got.spans), got.spans)
	}
	s := got.spans[0]
	if hex.EncodeToString(s.GetTraceId()) != parent[3:35] || hex.EncodeToString(s.GetParentSpanId()) != parent[36:52] || s.GetTraceState() != "vendor=value" {
		t.Errorf("not joined to the message's trace: %v", s)
	}
	if s.GetName() != "publish shop" || s.GetKind() != spans.Span_SPAN_KIND_PRODUCER || s.GetStatus().GetCode() != spans.Status_STATUS_CODE_UNSET {
		t.Errorf("got %v", s)
	}
	if s.GetStartTimeUnixNano() != uint64(m.CommittedAt.UnixNano()) || s.GetEndTimeUnixNano() < uint64(m.SentAt.UnixNano()) {
		t.Errorf("from %d to %d", s.GetStartTimeUnixNano(), s.GetEndTimeUnixNano())
	}
	if e := s.GetEvents(); len(e) != 2 || e[0].GetName() != "taken" || e[1].GetName() != "sent" {
		t.Errorf("events: %v", e)
	}
	all := attributes(s.GetAttributes())
	for name, want := range map[string]string{
		"messaging.system": "rabbitmq", "messaging.operation.type": "send", "messaging.operation.name": "publish",
		"messaging.destination.name": "shop:orders.created", "messaging.rabbitmq.destination.routing_key": "orders.created",
		"messaging.message.id": "01000000-0000-0000-0000-000000000002", "messaging.message.body.size": "5",
		"cdc_relay.outcome": "confirmed", "cdc_relay.attempts": "2", "cdc_relay.possible_duplicate": "false", "cdc_relay.row_id": "7",
	} {
		if all[name] != want {
			t.Errorf("%s is %q, want %q", name, all[name], want)
		}
	}
	s = got.spans[1]
	if s.GetStatus().GetCode() != spans.Status_STATUS_CODE_ERROR || s.GetStatus().GetMessage() != "no queue" || attributes(s.GetAttributes())["error.type"] != "unroutable" {
		t.Errorf("of a refusal: %v", s)
	}
	if !bytes.Equal(m.Headers, before.Headers) || m.RoutingKey != before.RoutingKey || m.PossibleDuplicate {
		t.Errorf("the message was changed: %+v", m)
	}
}

func TestSpansAreSentByGRPC(t *testing.T) {
	plainly(t)
	var got receiver
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, &got)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+listener.Addr().String())
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	t.Setenv("OTEL_SERVICE_NAME", "shop-relay")
	tr := tracer(t) // it sets gRPC's logger, which must come before the server runs
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		<-served
	}()
	tr.Delivered(outbox.Result{Message: message(`{"traceparent": "` + parent + `"}`), Outcome: outbox.Confirmed})
	shutdown(t, tr)
	if len(got.spans) != 1 || got.resource["service.name"] != "shop-relay" {
		t.Errorf("got %v of %v", got.spans, got.resource)
	}
}

func TestNoSpanWithoutASampledParent(t *testing.T) {
	got := collect(t)
	tr := tracer(t)
	for _, headers := range []string{
		``, `{}`, `{"traceparent": 1}`, `{"traceparent": "nonsense"}`, `{"nested": {"traceparent": "` + parent + `"}}`,
		`{"traceparent": "` + strings.TrimSuffix(parent, "01") + `00"}`, // its trace is not sampled
	} {
		tr.Delivered(outbox.Result{Message: message(headers), Outcome: outbox.Confirmed})
	}
	tr.Delivered(outbox.Result{Message: message(`{"traceparent": "` + parent + `"}`), Outcome: outbox.NotSent})
	shutdown(t, tr)
	if len(got.spans) != 0 {
		t.Errorf("got %v", got.spans)
	}
}

func TestVariablesEnableTracing(t *testing.T) {
	for _, test := range []struct {
		env  string
		on   bool
		want string
	}{
		{"", false, ""},
		{"OTEL_TRACES_EXPORTER=otlp", true, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318", true, ""},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://localhost:4318/v1/traces", true, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 OTEL_TRACES_EXPORTER=none", false, ""},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_SDK_DISABLED=true", false, ""},
		{"OTEL_TRACES_EXPORTER=zipkin", false, "cdc-relay knows otlp and none"},
		{"OTEL_TRACES_EXPORTER=console,otlp", true, "cdc-relay knows otlp and none"},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=http/json", true, "knows http/protobuf and grpc"},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_RESOURCE_ATTRIBUTES=broken", true, "variable=OTEL_RESOURCE_ATTRIBUTES"},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_BSP_MAX_QUEUE_SIZE=-1", true, "variable=OTEL_BSP_*"},
	} {
		t.Run(test.env, func(t *testing.T) {
			plainly(t)
			for one := range strings.FieldsSeq(test.env) {
				name, value, _ := strings.Cut(one, "=")
				t.Setenv(name, value)
			}
			var log bytes.Buffer
			tr := FromEnvironment(t.Context(), Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if ignored := log.String(); (tr != nil) != test.on || strings.Contains(ignored, "event=tracing_ignored") != (test.want != "") || !strings.Contains(ignored, test.want) {
				t.Errorf("got %v; %s", tr, ignored)
			}
			if tr != nil {
				shutdown(t, tr)
			}
		})
	}
}

// Platforms give them to every process.
func TestNoVariableStopsTheRelayOrFillsItsMemory(t *testing.T) {
	var names []string
	for _, name := range []string{
		"BSP_SCHEDULE_DELAY", "BSP_EXPORT_TIMEOUT", "BSP_MAX_QUEUE_SIZE", "BSP_MAX_EXPORT_BATCH_SIZE", "ATTRIBUTE_VALUE_LENGTH_LIMIT",
		"ATTRIBUTE_COUNT_LIMIT", "SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "SPAN_ATTRIBUTE_COUNT_LIMIT", "SPAN_EVENT_COUNT_LIMIT", "SPAN_LINK_COUNT_LIMIT",
		"EVENT_ATTRIBUTE_COUNT_LIMIT", "LINK_ATTRIBUTE_COUNT_LIMIT", "TRACES_SAMPLER", "TRACES_SAMPLER_ARG", "PROPAGATORS", "RESOURCE_ATTRIBUTES",
		"SERVICE_NAME", "SDK_DISABLED", "TRACES_EXPORTER", "LOG_LEVEL", "GO_X_OBSERVABILITY", "GO_X_RESOURCE", "CONFIG_FILE",
	} {
		names = append(names, "OTEL_"+name)
	}
	for _, name := range []string{"ENDPOINT", "PROTOCOL", "HEADERS", "TIMEOUT", "COMPRESSION", "INSECURE", "CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"} {
		names = append(names, "OTEL_EXPORTER_OTLP_"+name, "OTEL_EXPORTER_OTLP_TRACES_"+name)
	}
	values := []string{"-1", "0", "1000000000", "99999999999999999999", "9223372036854775807", "x=\x01,=", "%zz", "https://:0:0/%zz", "/nowhere", "true", "traceidratio", "=,=;"}
	for _, protocol := range []string{"http/protobuf", "grpc"} {
		for _, name := range names {
			for _, value := range values {
				plainly(t)
				t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
				t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
				t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "5")
				t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "5")
				t.Run(protocol+" "+name+" "+value, func(t *testing.T) {
					t.Setenv(name, value)
					v := variables{event.Limited(slog.New(slog.DiscardHandler))} // the loggers of libraries are set once in a process
					if !v.wanted() {
						return
					}
					if tr := v.tracer(t.Context(), Config{}); tr != nil {
						tr.Delivered(outbox.Result{Message: message(`{"traceparent": "` + parent + `"}`), Outcome: outbox.Confirmed})
						ctx, cancel := context.WithTimeout(t.Context(), time.Second)
						_ = tr.Shutdown(ctx)
						cancel()
					}
				})
			}
		}
	}
}

// The exporters alone would use https.
func TestWithoutAnEndpointTheCollectorIsOnThisMachine(t *testing.T) {
	plainly(t)
	for protocol, want := range map[string]string{
		"": "http://localhost:4318/v1/traces", "http/protobuf": "http://localhost:4318/v1/traces", "grpc": "http://localhost:4317",
	} {
		if got := localCollector(protocol); got != want {
			t.Errorf("%q: got %s, want %s", protocol, got, want)
		}
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		plainly(t)
		t.Setenv(name, "https://collector:4318")
		if got := localCollector(""); got != "" {
			t.Errorf("with %s: got %s", name, got)
		}
	}
}

// A collector that does not answer costs spans, never messages.
func TestACollectorThatHangsDelaysNothing(t *testing.T) {
	plainly(t)
	answer := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-answer }))
	t.Cleanup(server.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	tr := tracer(t)
	delivered := make(chan struct{})
	go func() {
		defer close(delivered)
		for range 20_000 { // more than wait for export
			tr.Delivered(outbox.Result{Message: message(`{"traceparent": "` + parent + `"}`), Outcome: outbox.Confirmed})
		}
	}()
	select {
	case <-delivered:
	case <-time.After(await.Hang()):
		t.Error("messages wait for the collector")
	}
	close(answer)
	<-delivered
	shutdown(t, tr)
}

// TestTheLoggersOfLibrariesWriteToTheLogWithoutSecrets: by themselves they write to the standard error.
func TestTheLoggersOfLibrariesWriteToTheLogWithoutSecrets(t *testing.T) {
	const token = "s3cr3t-token"
	for _, protocol := range []string{"http/protobuf", "grpc"} {
		for name, value := range map[string]string{
			"OTEL_EXPORTER_OTLP_HEADERS":         "Authorization Bearer " + token,
			"OTEL_EXPORTER_OTLP_TRACES_HEADERS":  "api-key=%zz" + token,
			"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://user:" + token + "%zz@localhost:4318",
			"OTEL_EXPORTER_OTLP_TIMEOUT":         "soon",
		} {
			t.Run(protocol+" "+name, func(t *testing.T) {
				plainly(t)
				t.Setenv("OTEL_TRACES_EXPORTER", "otlp")
				t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
				t.Setenv(name, value)
				var log bytes.Buffer
				if tr := FromEnvironment(t.Context(), Config{Logger: slog.New(slog.NewJSONHandler(&log, nil))}); tr != nil {
					shutdown(t, tr)
				}
				otel.Handle(errors.New("send: Authorization: Bearer " + token))
				grpclog.Error("send: Authorization: Bearer " + token)
				if strings.Contains(log.String(), token) {
					t.Errorf("a secret is logged: %s", log.String())
				}
				if n := bytes.Count(log.Bytes(), []byte{'\n'}); n < 2 {
					t.Errorf("%d lines are logged", n)
				}
				for line := range bytes.Lines(log.Bytes()) {
					var said struct{ Event string }
					if json.Unmarshal(line, &said) != nil || said.Event != "library_reported" && said.Event != "spans_lost" && said.Event != "tracing_ignored" {
						t.Errorf("got %s", line)
					}
				}
			})
		}
	}
}
