package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// Thousands of due rows of one key leave with one look-up for each run, not one for each row, in every mode. Other keys
// are not delayed.
func TestScheduledRowsOfOneKeyLeaveInRuns(t *testing.T) {
	services.Thorough(t, "counts transactions")
	t.Parallel()
	const rows = 3000
	for name, way := range map[string]func(w *world, all func() bool){
		"streaming": func(w *world, all func() bool) {
			w.run("--poll-interval", "100ms")
			insertDue(w, rows)
			w.eventually("all arrive", all)
		},
		"polling": func(w *world, all func() bool) {
			insertDue(w, rows)
			w.run("--mode", "poll", "--poll-interval", "100ms")
			w.eventually("all arrive", all)
		},
		"drained": func(w *world, all func() bool) {
			insertDue(w, rows)
			w.succeeds("drain")
			w.eventually("all arrive", all)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t).plainly().setUp()
			arrived := w.consume(w.queue)
			const commits = `SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`
			before, began := value[int64](w, commits), time.Now()
			way(w, func() bool { return arrived.distinct() == 2*rows })
			w.emptied()
			took := value[int64](w, commits) - before
			t.Logf("%d rows after %s and %d transactions", 2*rows, time.Since(began).Round(time.Millisecond), took)
			if took > rows {
				t.Errorf("%d transactions for %d rows of a key", took, rows)
			}
			noDuplicates(t, arrived)
			next := 0
			for _, d := range arrived.all() {
				if d.Headers["hot"] == nil {
					continue
				}
				var n int
				if _, err := fmt.Sscan(string(d.Body), &n); err != nil || n != next+1 {
					t.Fatalf("message %s of the key comes after %d (%v)", d.Body, next, err)
				}
				next = n
			}
		})
	}
}

// insertDue inserts due rows of one key, and as many without a key.
func insertDue(w *world, rows int) {
	w.t.Helper()
	w.exec(`INSERT INTO outbox (routing_key, ordering_key, headers, payload, available_at)
		SELECT $1, key, CASE WHEN key IS NOT NULL THEN '{"hot": true}'::jsonb END, to_json(n), now()
		FROM generate_series(1, $2) n, unnest(ARRAY['hot', NULL]) key`, w.queue, rows)
}
