package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"maps"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/systemdtest"
)

// logLines returns the lines of a JSON log by event; other lines are left out.
func logLines(t *testing.T, log string) map[string]map[string]any {
	t.Helper()
	lines := make(map[string]map[string]any)
	for text := range strings.Lines(log) {
		var line map[string]any
		if json.Unmarshal([]byte(text), &line) == nil {
			name, _ := line["event"].(string)
			lines[name] = line
		}
	}
	return lines
}

func TestTheFirstLogLineHasServersRoleAndChangedSettings(t *testing.T) {
	cfg := defaultConfig()
	cfg.relay.DatabaseURL = "postgres://relay:s3cret@first:5432,second:5433/shop"
	cfg.rabbitmq.Value = "amqp://guest:s3cret@broker:5672,other:5673/orders"
	for name, text := range map[string]string{
		"max-retries": "unlimited", "shutdown-timeout": "30000ms", "failover-slot": "true", "log-headers": "a,b",
		"management-url": "http://u:s3cret@h",
	} {
		cfg.given[name] = settings.Value{Text: text}
	}
	cfg.flags = []string{"max-retries", "shutdown-timeout", "log-headers"}
	cfg.given["config"] = settings.Value{Text: "/etc/cdc-relay/config.yaml", Source: settings.FromEnvironment, Place: "CDC_RELAY_CONFIG"}
	var out bytes.Buffer
	(&reportingRelay{log: slog.New(slog.NewJSONHandler(&out, nil))}).logStart("run", cfg)
	line := logLines(t, out.String())["relay_started"]
	for _, always := range []string{"time", "level", "msg", "event", "commit", "version"} {
		if line[always] == nil {
			t.Errorf("the line has no %s", always)
		}
		delete(line, always)
	}
	want := map[string]any{
		"postgres": "first:5432,second:5433/shop", "role": "relay", "config": "/etc/cdc-relay/config.yaml", "rabbitmq": "broker:5672,other:5673/orders", "table": "public.outbox",
		"slot": "cdc_relay", "publication": "cdc_relay", "max_retries": "unlimited", "failover_slot": true,
		"log_headers": "a,b",
	}
	if !maps.Equal(line, want) {
		t.Errorf("got  %v\nwant %v", line, want)
	}
	if strings.Contains(out.String(), "s3cret") {
		t.Error("the line has the password")
	}
}

// Alerts read the log, not the last line for people.
func TestTheLastLogLineSaysWhyTheRelayStopped(t *testing.T) {
	env := environment{"CDC_RELAY_DATABASE_URL": services.Database(t), "CDC_RELAY_AMQP_URL": services.VHost(t), "CDC_RELAY_HTTP_ADDR": ""}
	for _, command := range []string{"run", "drain"} {
		r := cdcRelay(t, env, command, "--log-format=json")
		want(t, r, exitFailed)
		lines := logLines(t, r.stderr)
		failed := lines["relay_failed"]
		if lines["relay_started"] == nil || failed["level"] != "ERROR" || !strings.Contains(failed["hint"].(string), "cdc-relay setup  # if ") ||
			!strings.HasPrefix(failed["error"].(string), "table public.outbox does not exist") {
			t.Errorf("%s: %s", command, r.stderr)
		}
		for line := range strings.Lines(r.stderr) {
			if !json.Valid([]byte(line)) {
				t.Errorf("%s: a line is not JSON: %s", command, line)
			}
		}
		if text := cdcRelay(t, env, command, "--log-format=text").stderr; strings.Contains(text, "relay_failed") {
			t.Errorf("%s prints the error twice: %s", command, text)
		}
	}
}

// TestARelayThatIsStoppedWhileItWaitsForPostgresSaysSo: nothing was published, and the log has its end.
func TestARelayThatIsStoppedWhileItWaitsForPostgresSaysSo(t *testing.T) {
	env := environment{"CDC_RELAY_DATABASE_URL": "postgres://shop@127.0.0.1:1/shop", "CDC_RELAY_AMQP_URL": "amqp://127.0.0.1:1", "CDC_RELAY_HTTP_ADDR": ""}
	relay := start(t, env, "run", "--log-format=json")
	relay.await(t, "postgres_down")
	relay.signal(t, syscall.SIGTERM)
	relay.await(t, "relay_stopped")
	relay.ends(t, exitDone)
}

// The relay and the console have addresses of their own, also with the same file. A port in use shows which address a
// command takes.
func TestRunAndConsoleListenWhereTheyAreTold(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	used := listener.Addr().String()
	for command, test := range map[string]struct{ file, hint string }{
		"run":     {"http-addr: " + used + "\nconsole-listen: 127.0.0.1:0\n", "# choose another address"},
		"console": {"http-addr: 127.0.0.1:0\nconsole-listen: " + used + "\n", "cdc-relay console --console-listen "},
	} {
		env := environment{
			"CDC_RELAY_DATABASE_URL": "postgres://127.0.0.1:1/shop", "CDC_RELAY_AMQP_URL": "amqp://127.0.0.1:1",
			"CDC_RELAY_LOG_FORMAT": "text", "CDC_RELAY_CONFIG": writeFile(t, "relay.yaml", test.file),
		}
		wantError(t, cdcRelay(t, env, command), ": listen tcp "+used, "hint: "+test.hint)
		env["CDC_RELAY_LOG_FORMAT"] = "json" // also before the relay has started
		log := cdcRelay(t, env, command).stderr
		if command == "run" && (logLines(t, log)["relay_failed"] == nil || strings.Count(log, "\n") != 1) {
			t.Errorf("the log: %s", log)
		}
	}
}

func TestSystemdGetsReadinessStatusAndStopping(t *testing.T) {
	t.Parallel()
	socket, said := systemdtest.Listen(t)
	env := environment{
		"CDC_RELAY_DATABASE_URL": services.Database(t), "CDC_RELAY_SLOT": services.Name(t), "CDC_RELAY_PUBLISHER": "stdout",
		"CDC_RELAY_HTTP_ADDR": "", "NOTIFY_SOCKET": socket, "WATCHDOG_USEC": "900000",
	}
	want(t, cdcRelay(t, env, "setup"), exitDone)
	c := start(t, env, "run")
	systemdtest.Await(t, said, "READY=1")
	systemdtest.Await(t, said, "WATCHDOG=1")
	systemdtest.Await(t, said, "STATUS=ready (streaming)")
	c.signal(t, syscall.SIGTERM)
	systemdtest.Await(t, said, "STOPPING=1")
	c.ends(t, exitDone)
}

// A relay that waits for Postgres counts as started, and reports what it waits for.
func TestSystemdStatusNamesWhatAStartWaitsFor(t *testing.T) {
	t.Parallel()
	socket, said := systemdtest.Listen(t)
	start(t, environment{
		"CDC_RELAY_DATABASE_URL": someDatabase, "CDC_RELAY_PUBLISHER": "stdout", "CDC_RELAY_HTTP_ADDR": "", "NOTIFY_SOCKET": socket,
	}, "run")
	message := systemdtest.Await(t, said, "READY=1")
	if !strings.HasPrefix(message, "STATUS=not ready (starting); start: ") || !strings.Contains(message, "connection refused") ||
		strings.Contains(message, "WATCHDOG=1") || strings.Contains(message, "s3cr3t") {
		t.Errorf("got %s", message)
	}
}
