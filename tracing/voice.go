package tracing

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"google.golang.org/grpc/grpclog"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// listen lets OpenTelemetry and gRPC log to this log. Their own loggers write to the standard error.
func listen(log *slog.Logger) {
	otel.SetLogger(logr.New(voice{log}))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("OpenTelemetry reports an error: spans may be lost; messages unaffected",
			"event", event.SpansLost, "error", err)
	}))
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, event.Library(log).Writer()))
}

// voice is a logr.LogSink. It leaves out the values of OpenTelemetry: they can be the text of a variable that could not
// be parsed, such as headers with a token.
type voice struct{ log *slog.Logger }

// Init implements logr.LogSink.
func (voice) Init(logr.RuntimeInfo) {}

// Enabled implements logr.LogSink: OpenTelemetry calls it with 0 for errors, and 1 for warnings.
func (voice) Enabled(level int) bool { return level <= 1 }

// Info implements logr.LogSink.
func (v voice) Info(_ int, what string, _ ...any) {
	v.log.Warn("OpenTelemetry warns: messages unaffected", "event", event.LibraryReported, "error", what)
}

// Error implements logr.LogSink.
func (v voice) Error(err error, what string, _ ...any) {
	v.log.Warn("OpenTelemetry reports an error: messages unaffected",
		"event", event.LibraryReported, "error", fmt.Sprint(what, ": ", err))
}

// WithValues implements logr.LogSink.
func (v voice) WithValues(...any) logr.LogSink { return v }

// WithName implements logr.LogSink.
func (v voice) WithName(string) logr.LogSink { return v }
