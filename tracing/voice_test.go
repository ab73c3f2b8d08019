package tracing

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"google.golang.org/grpc/grpclog"
)

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
				tr, err := FromEnvironment(t.Context(), Config{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
				if err == nil {
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
					if json.Unmarshal(line, &said) != nil || said.Event != "library_reported" && said.Event != "spans_lost" {
						t.Errorf("got %s", line)
					}
				}
			})
		}
	}
}
