package e2e

import (
	"testing"
	"time"
)

// TestOneHotKey: one ordering key has one message in flight at a time, whoever brings it. The log
// has the pace; what is asserted is that none of the ways gets stuck on it.
func TestOneHotKey(t *testing.T) {
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
			w.eventually("all arrive", time.Minute, func() bool { return arrived.distinct() == rows })
			tell(t, began, 100)
		},
		"found by the holder of the slot": func(t *testing.T, w *world) {
			arrived := w.consume(w.queue)
			insert(w)
			began := time.Now()
			w.run()
			w.eventually("all arrive", time.Minute, func() bool { return arrived.distinct() == rows })
			tell(t, began, 100)
		},
		"polled": func(t *testing.T, w *world) {
			arrived := w.consume(w.queue)
			w.run("--mode", "poll", "--poll-interval", "100ms")
			began := time.Now()
			insert(w)
			w.eventually("all arrive", 2*time.Minute, func() bool { return arrived.distinct() == rows })
			tell(t, began, 10)
		},
		"drained": func(t *testing.T, w *world) {
			insert(w)
			began := time.Now()
			if out, code := w.command("drain"); code != 0 {
				t.Errorf("exit code %d\n%s", code, out)
			}
			tell(t, began, 10)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			way(t, newWorld(t).plainly().setUp())
		})
	}
}
