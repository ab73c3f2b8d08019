package handler

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

// The log names an invalid line, but does not quote it: it may be a message.
func TestLogsNothingThatTheHandlerPrints(t *testing.T) {
	for _, secret := range []string{
		"secret",
		`"secret"`,
		`["secret"]`,
		"42424242",
		`{"secret": secret}`,
		`{"message_id": "secret"}`,
		`{"message_id": 42424242, "outcome": "secret"}`,
		`{"message_id": "5f0c4a86-5e0b-4f0c-9b0e-6b1d3c1f9a5z", "outcome": "secret"}`,
		`{"message_id": "5f0c4a86-5e0b-4f0c-9b0e-6b1d3c1f9a52", "outcome": "secret"}`,
		`{"message_id": "5f0c4a86-5e0b-4f0c-9b0e-6b1d3c1f9a52", "outcome": "rejected", "retry_in": "secret"}`,
		`{"outcome": {"secret": 42424242}}`,
		"\x00\x1b[2Jsecret",
		strings.Repeat("secret", longestAnswer),
	} {
		var log bytes.Buffer
		h := &handler{p: &Publisher{cfg: Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}}}
		h.take([][]byte{[]byte(secret), []byte(secret)})
		text := log.String()
		if strings.Count(text, "handler_answer_invalid") != 1 || !strings.Contains(text, "bytes=") {
			t.Errorf("%.80q: logged %q", secret, text)
		}
		for _, part := range []string{"secret", "42424242", "\\x1b", "invalid character"} {
			if strings.Contains(text, part) {
				t.Errorf("%.80q: the log quotes it: %s", secret, text)
			}
		}
	}
}

func TestTheHandlerDoesNotInheritCredentials(t *testing.T) {
	removed := []string{
		"CDC_RELAY_DATABASE_URL", "CDC_RELAY_AMQP_URL_FILE", "CDC_RELAY_", "cdc_relay_amqp_url",
		"PGPASSWORD", "PGPASSFILE", "PGSERVICE", "PGSERVICEFILE", "PGSSLKEY", "PGSSLPASSWORD", "PGUSER", "PGHOST",
		"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_CLIENT_KEY",
		"OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "OTEL_EXPORTER_OTLP_ENDPOINT",
		"DD_API_KEY", "DD_APP_KEY", "DD_DOGSTATSD_URL", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS",
	}
	kept := []string{
		"PATH", "HOME", "LANG", "TOKEN", "HTTP_PROXY", "OTEL_SERVICE_NAME", "DD_AGENT_HOST", "MY_CDC_RELAY_TOKEN", "PGP_KEY",
		"TARGET_PGPASSWORD", "LISTENER", "CDC_RELAYED", "EMPTY",
	}
	var environ []string
	for _, name := range append(slices.Clone(removed), kept...) {
		environ = append(environ, name+"=CDC_RELAY_X=1")
	}
	var got []string
	for _, pair := range Environment(environ) {
		name, _, _ := strings.Cut(pair, "=")
		got = append(got, name)
	}
	if !slices.Equal(got, kept) {
		t.Errorf("got %v, want %v", got, kept)
	}
	t.Setenv("PGPASSWORD", "secret")
	p, err := New(Config{Command: []string{"true"}})
	if err != nil || slices.Contains(p.cfg.Env, "PGPASSWORD=secret") || len(p.cfg.Env) == 0 {
		t.Errorf("without an environment: %v, %v", p, err)
	}
}
