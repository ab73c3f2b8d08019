// Package tracing creates OpenTelemetry spans for published messages: for each message with a traceparent, one span
// from its commit to the broker's confirm. The standard OTEL_* variables turn it on and configure it.
package tracing

import (
	"context"
	"log/slog"

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

// FromEnvironment creates a tracer from the OTEL_* variables, or returns nil if they ask for none. Platforms give such
// variables to every process, so one that cannot be followed is ignored with a warning. It does not connect. The caller
// calls Shutdown.
func FromEnvironment(ctx context.Context, config Config) *Tracer {
	v := variables{event.Limited(config.Logger)}
	if !v.wanted() {
		return nil
	}
	listen(v.log)
	return v.tracer(ctx, config)
}

// tracer returns nil if there is no exporter.
func (v variables) tracer(ctx context.Context, config Config) *Tracer {
	exporter, err := v.exporter(ctx)
	if err != nil {
		v.ignore("OTEL_EXPORTER_OTLP_ENDPOINT", "the exporter rejects it: no spans are exported")
		return nil
	}
	described, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName("cdc-relay"), semconv.ServiceVersion(config.Version)),
		resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithFromEnv()) // the last one wins
	if err != nil {
		v.ignore("OTEL_RESOURCE_ATTRIBUTES", "want key=value,…")
	}
	// Sampler and limits of spans come from the OTEL_* variables.
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter, v.bound), sdktrace.WithResource(described))
	return &Tracer{
		provider: provider,
		tracer: provider.Tracer("github.com/cdc-relay/cdc-relay",
			trace.WithInstrumentationVersion(config.Version)),
		defaultExchange: config.DefaultExchange,
	}
}

// Shutdown exports the remaining spans, until ctx is done.
func (t *Tracer) Shutdown(ctx context.Context) error { return t.provider.Shutdown(ctx) }
