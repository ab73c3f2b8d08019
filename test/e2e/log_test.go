package e2e

import (
	"strings"
	"testing"
)

// The first lines have both servers and the role; at debug, each batch has one line.
func TestTheLogShowsServersRoleAndBatches(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	const rows = 2000
	w.copyRows(rows, w.queue) // before the stream: they are swept
	r := w.run("--log-level", "debug", "--max-retries", "7")
	w.emptied()
	w.copyRows(rows, w.queue) // streamed
	w.emptied()
	w.await(arrived, w.insert(nil))
	w.emptied()
	r.stopsWell()
	first, _, _ := strings.Cut(r.logs(), "\n")
	for _, field := range []string{`"event":"relay_started"`, `"version":`, `"commit":`, `"postgres":`, `"rabbitmq":`, `"slot":"` + w.slot + `"`, `"max_retries":7`} {
		if !strings.Contains(first, field) {
			t.Errorf("the first line has no %s: %s", field, first)
		}
	}
	for _, what := range []string{
		`"event":"postgres_connected"`, `"event":"broker_connected"`, `"event":"leader_started"`, `"event":"streaming"`,
		`"event":"relay_stopping"`, `"event":"relay_stopped"`,
		"publishing streamed rows", "deleted or updated rows", "scanned the table", `"sweep":"backlog"`,
	} {
		if len(linesWith(r.logs(), what)) == 0 {
			t.Errorf("the log has no %s", what)
		}
	}
	for _, connected := range append(linesWith(r.logs(), "postgres_connected"), linesWith(r.logs(), "broker_connected")...) {
		if !strings.Contains(connected, `"version":"`) || !strings.Contains(connected, `"address":"`) {
			t.Errorf("version or address of the server are missing: %s", connected)
		}
	}
	if n := strings.Count(r.logs(), "\n"); n > rows {
		t.Errorf("%d lines for %d messages, want one for each batch", n, 2*rows)
	}
}
