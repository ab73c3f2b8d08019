package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/bench/gauge"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// Thousands of rows of one key, due and fresh ones in turn, leave with one look-up for each run, not one for each row, and
// do not wait for the next poll, in every mode. Other keys are not delayed.
func TestScheduledRowsOfOneKeyLeaveInRuns(t *testing.T) {
	services.Thorough(t, "counts transactions")
	t.Parallel()
	const rows = 3000
	for name, way := range map[string]func(w *world, all func() bool){
		"streaming": func(w *world, all func() bool) {
			w.run("--poll-interval", "1m")
			insertDue(w, rows)
			w.eventually("all arrive", all)
		},
		"polling": func(w *world, all func() bool) {
			insertDue(w, rows)
			w.run("--mode", "poll", "--poll-interval", "1m")
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

// insertDue inserts rows of one key, every second one of them due, and as many due rows without a key.
func insertDue(w *world, rows int) {
	w.t.Helper()
	w.exec(`INSERT INTO outbox (routing_key, ordering_key, headers, payload, available_at)
		SELECT $1, key, CASE WHEN key IS NOT NULL THEN '{"hot": true}'::jsonb END, to_json(n), CASE WHEN key IS NULL OR n % 2 = 0 THEN now() END
		FROM generate_series(1, $2) n, unnest(ARRAY['hot', NULL]) key`, w.queue, rows)
}

func (w *world) transactions() float64 {
	w.t.Helper()
	return value[float64](w, `SELECT (xact_commit + xact_rollback)::float8 FROM pg_stat_database WHERE datname = current_database()`)
}

func (r *relay) cpu() time.Duration {
	r.w.t.Helper()
	used, err := gauge.CPU(r.cmd.Process.Pid)
	if err != nil {
		r.w.t.Skip("no /proc on this system")
	}
	return used
}

func TestAnIdleRelayMakesFewQueries(t *testing.T) {
	services.Thorough(t, "measures the speed")
	t.Parallel()
	w := newWorld(t).plainly().setUp()
	over := sized(4*time.Second, time.Minute)
	once := func(who string, relays ...*relay) (perSecond float64) {
		cpu := time.Duration(0)
		for _, r := range relays {
			cpu -= r.cpu()
		}
		began, before := time.Now(), w.transactions()
		<-time.After(over)
		perSecond = (w.transactions() - before) / time.Since(began).Seconds()
		for _, r := range relays {
			cpu += r.cpu()
		}
		t.Logf("%s: %.1f transactions a second, %.2f %% of a core", who, perSecond, 100*cpu.Seconds()/time.Since(began).Seconds())
		return perSecond
	}
	measure := func(who string, most float64, relays ...*relay) {
		t.Helper()
		// An idle session reports its counts from the start up to ten seconds later.
		var perSecond float64
		for range 10 {
			if perSecond = once(who, relays...); perSecond <= most {
				return
			}
		}
		t.Errorf("%s: %.1f transactions a second, want at most %.0f", who, perSecond, most)
	}
	leader := w.run()
	measure("one that streams", 3, leader)
	standby := w.run()
	measure("one that streams and one that stands by", 8, leader, standby)
}
