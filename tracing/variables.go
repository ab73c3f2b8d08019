package tracing

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// variables reads the OTEL_* variables.
type variables struct{ log *slog.Logger }

// ignore warns of a variable. Its value may contain a secret.
func (v variables) ignore(name, why string) {
	v.log.Warn("OpenTelemetry variable ignored: messages unaffected",
		"event", event.TracingIgnored, "variable", name, "error", why)
}

// wanted reports whether the environment asks for spans.
func (v variables) wanted() bool {
	exporters := os.Getenv("OTEL_TRACES_EXPORTER")
	switch {
	case strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true"):
		return false
	case exporters == "":
		return hasEndpoint()
	}
	otlp := false
	for name := range strings.SplitSeq(exporters, ",") {
		switch strings.TrimSpace(name) {
		case "otlp":
			otlp = true
		case "none", "":
		default:
			v.ignore("OTEL_TRACES_EXPORTER", "cdc-relay knows otlp and none")
		}
	}
	return otlp
}

func hasEndpoint() bool {
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// exporter reads the other OTEL_EXPORTER_* variables.
func (v variables) exporter(ctx context.Context) (*otlptrace.Exporter, error) {
	protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"))
	local := localCollector(protocol)
	if protocol == "grpc" {
		var options []otlptracegrpc.Option
		if local != "" {
			options = append(options, otlptracegrpc.WithEndpointURL(local))
		}
		return otlptracegrpc.New(ctx, options...)
	}
	if protocol != "" && protocol != "http/protobuf" {
		v.ignore("OTEL_EXPORTER_OTLP_PROTOCOL", "cdc-relay knows http/protobuf and grpc: using http/protobuf")
	}
	var options []otlptracehttp.Option
	if local != "" {
		options = append(options, otlptracehttp.WithEndpointURL(local))
	}
	return otlptracehttp.New(ctx, options...)
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

// bound limits what the OTEL_BSP_* variables say: with a negative size OpenTelemetry panics, with a huge one it fills
// the memory, and without a delay it never sleeps.
func (v variables) bound(o *sdktrace.BatchSpanProcessorOptions) {
	given := *o
	o.MaxQueueSize = min(max(o.MaxQueueSize, 1), 1<<16)
	o.MaxExportBatchSize = min(max(o.MaxExportBatchSize, 1), o.MaxQueueSize)
	o.BatchTimeout = min(max(o.BatchTimeout, time.Millisecond), time.Hour)
	o.ExportTimeout = min(max(o.ExportTimeout, time.Millisecond), time.Hour)
	if *o != given {
		v.ignore("OTEL_BSP_*", "a number is out of range: using the nearest")
	}
}
