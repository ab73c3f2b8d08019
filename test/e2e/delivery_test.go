package e2e

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestACleanRestartNeitherLosesNorDuplicates(t *testing.T) {
	w, arrived := consuming(t)
	const rows = 20_000
	for i := range 4 {
		r := w.run("--log-level", "debug")
		if i%2 == 0 {
			w.copyRows(rows/4, w.queue)
		} else {
			w.insertMany(rows / 4)
		}
		w.eventually("some rows arrive", func() bool { return arrived.distinct() > rows/4*i+rows/20 })
		r.stopsWell()
		for _, what := range []string{
			`"event":"postgres_connected","version":"`, `"event":"leader_started"`, `"event":"streaming"`,
			`"event":"relay_stopping"`, `"event":"relay_stopped"`, "deleted or updated rows",
		} {
			if !strings.Contains(r.logs(), what) {
				t.Errorf("the log has no %s", what)
			}
		}
		if n := strings.Count(r.logs(), "\n"); n > rows/4 {
			t.Errorf("%d lines for %d messages, want one for each batch", n, rows/4)
		}
	}
	w.run()
	w.eventually("all rows arrive", func() bool { return arrived.distinct() == rows })
	w.emptied()
	noDuplicates(t, arrived)
}

// Kept in memory, either number of rows would need nearly twice the limit or more.
func TestALargeTransactionUsesBoundedMemory(t *testing.T) {
	services.Thorough(t, "takes half a minute")
	w := newWorld(t).plainly().setUp()
	arrived := w.consume(w.queue)
	arrived.onlyCount()
	r := w.run()
	rows := sized(150_000, 1_000_000)
	w.exec(`INSERT INTO outbox (routing_key, payload)
		SELECT $1, json_build_object('n', n, 'text', repeat('x', 200)) FROM generate_series(1, $2) n`, w.queue, rows)
	w.eventually("all rows arrive", func() bool { return arrived.distinct() == rows })
	if mb := r.residentMB(); mb >= sized(85, 150) {
		t.Errorf("the relay took %d MB", mb)
	} else {
		t.Logf("the relay took %d MB", mb)
	}
	w.eventually("the table is empty", w.outboxEmpty)
	noDuplicates(t, arrived)
}
