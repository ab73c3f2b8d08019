package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// One ordering key has one message in flight at a time. The test logs the speed for each way out of the table, and
// fails if one gets stuck.
func TestAHotKeyLeavesAtAMinimumSpeed(t *testing.T) {
	services.Thorough(t, "measures the speed")
	t.Parallel()
	rows := sized(300, 5000)
	insert := func(w *world) {
		w.exec(`INSERT INTO outbox (routing_key, ordering_key, payload) SELECT $1, 'hot', to_json(n) FROM generate_series(1, $2) n`, w.queue, rows)
	}
	tell := func(t *testing.T, began time.Time, least float64) {
		t.Helper()
		pace := float64(rows) / time.Since(began).Seconds()
		t.Logf("%.0f messages a second", pace)
		if pace < sized(least/5, least) {
			t.Errorf("%.0f messages a second, want at least %.0f", pace, sized(least/5, least))
		}
	}
	for name, way := range map[string]func(*testing.T, *world){
		"streamed": func(t *testing.T, w *world) {
			arrived := w.consume(w.queue)
			w.run()
			began := time.Now()
			insert(w)
			w.eventually("all arrive", func() bool { return arrived.distinct() == rows })
			tell(t, began, 100)
		},
		"found by the leader": func(t *testing.T, w *world) {
			arrived := w.consume(w.queue)
			insert(w)
			began := time.Now()
			w.run()
			w.eventually("all arrive", func() bool { return arrived.distinct() == rows })
			tell(t, began, 100)
		},
		"polled": func(t *testing.T, w *world) {
			arrived := w.consume(w.queue)
			w.run("--mode", "poll", "--poll-interval", "100ms")
			began := time.Now()
			insert(w)
			w.eventually("all arrive", func() bool { return arrived.distinct() == rows })
			tell(t, began, 100)
		},
		"drained": func(t *testing.T, w *world) {
			insert(w)
			began := time.Now()
			if out, code := w.command("drain"); code != 0 {
				t.Errorf("exit code %d\n%s", code, out)
			}
			tell(t, began, 100)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			way(t, newWorld(t).plainly().setUp())
		})
	}
}

// Thousands of due rows of one key leave with one claim for each run, not one for each row, in every mode. Other keys
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
			if out, code := w.command("drain"); code != 0 {
				w.t.Errorf("exit code %d\n%s", code, out)
			}
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
