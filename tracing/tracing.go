// Package tracing creates OpenTelemetry spans for published messages: for each message with a traceparent, one span
// from its commit to the broker's confirm. The standard OTEL_* variables turn it on and configure it.
package tracing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// Config holds what the environment does not define.
type Config struct {
	// Version is the version of the program.
	Version string
	// DefaultExchange is the exchange of messages that name none.
	DefaultExchange string
	// Logger gets what OpenTelemetry and gRPC report.
	Logger *slog.Logger
}

// Tracer creates the spans. It implements relay.Tracer and is safe for concurrent use.
type Tracer struct {
	provider        *sdktrace.TracerProvider
	tracer          trace.Tracer
	propagator      propagation.TraceContext
	defaultExchange string
}

// FromEnvironment creates a tracer from the OTEL_* variables, or returns nil if they ask for none. It does not connect.
// The caller calls Shutdown.
func FromEnvironment(ctx context.Context, config Config) (*Tracer, error) {
	on, err := wanted()
	if err != nil || !on {
		return nil, err
	}
	listen(event.Limited(config.Logger))
	exporter, err := newExporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("make the OTLP exporter: %w", err)
	}
	described, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName("cdc-relay"), semconv.ServiceVersion(config.Version)),
		resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithFromEnv()) // the last one wins
	if err != nil {
		return nil, errors.Join(fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err), exporter.Shutdown(ctx))
	}
	// Sampler, limits and batch sizes come from the OTEL_* variables.
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(described))
	return &Tracer{
		provider: provider,
		tracer: provider.Tracer("github.com/cdc-relay/cdc-relay",
			trace.WithInstrumentationVersion(config.Version)),
		defaultExchange: config.DefaultExchange,
	}, nil
}

// wanted reports whether the environment asks for spans.
func wanted() (bool, error) {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	switch exporter := os.Getenv("OTEL_TRACES_EXPORTER"); exporter {
	case "none":
		return false, nil
	case "otlp":
		return true, nil
	case "":
		return hasEndpoint(), nil
	default:
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER=%s: cdc-relay knows otlp and none", exporter)
	}
}

func hasEndpoint() bool {
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// newExporter reads the other OTEL_* variables.
func newExporter(ctx context.Context) (*otlptrace.Exporter, error) {
	protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"))
	local := localCollector(protocol)
	switch protocol {
	case "", "http/protobuf":
		var options []otlptracehttp.Option
		if local != "" {
			options = append(options, otlptracehttp.WithEndpointURL(local))
		}
		return otlptracehttp.New(ctx, options...)
	case "grpc":
		var options []otlptracegrpc.Option
		if local != "" {
			options = append(options, otlptracegrpc.WithEndpointURL(local))
		}
		return otlptracegrpc.New(ctx, options...)
	}
	return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL=%s: cdc-relay knows http/protobuf and grpc", protocol)
}

// localCollector is the default endpoint of OpenTelemetry, "" if the environment names one. The exporters' own default
// is the same host with https.
func localCollector(protocol string) string {
	switch {
	case hasEndpoint():
		return ""
	case protocol == "grpc":
		return "http://localhost:4317"
	}
	return "http://localhost:4318/v1/traces"
}

// Shutdown exports the remaining spans, until ctx is done.
func (t *Tracer) Shutdown(ctx context.Context) error { return t.provider.Shutdown(ctx) }
