package e2e

import (
	"fmt"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// Each leaves right after the previous one, not at the next poll.
func TestScheduledAndFreshRowsOfOneKeyLeaveInOrder(t *testing.T) {
	services.Thorough(t, "keys keep their order in the quick run")
	t.Parallel()
	const rows = 60
	for name, way := range map[string]func(w *world, insert func()){
		"waiting rows": func(w *world, insert func()) {
			insert()
			w.run("--poll-interval", "1m")
		},
		"new rows": func(w *world, insert func()) {
			w.run("--poll-interval", "1m")
			insert()
		},
		"polling": func(w *world, insert func()) {
			insert()
			w.run("--poll-interval", "1m", "--mode", "poll")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, arrived := consuming(t)
			way(w, func() {
				w.exec(`INSERT INTO outbox (routing_key, ordering_key, payload, available_at)
					SELECT $1, 'key', to_json(n), CASE WHEN n % 2 = 0 THEN clock_timestamp() END FROM generate_series(1, $2) n`, w.queue, rows)
			})
			w.eventually("all arrive", func() bool { return arrived.distinct() == rows })
			w.emptied()
			for i, d := range arrived.all() {
				if want := fmt.Sprint(i + 1); string(d.Body) != want {
					t.Fatalf("message %s arrived in place of %s", d.Body, want)
				}
			}
		})
	}
}
