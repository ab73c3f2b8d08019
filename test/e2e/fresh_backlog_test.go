package e2e

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// A starting relay publishes at once although millions of rows wait and none is old. A search for old rows would read
// all of them.
func TestAFreshBacklogLeavesAtOnce(t *testing.T) {
	services.Thorough(t, "a million rows")
	w := newWorld(t).plainly().setUp()
	w.exec(`INSERT INTO outbox (routing_key, payload) SELECT $1, '{}' FROM generate_series(1, $2) n`, w.queue, sized(100_000, 5_000_000))
	arrived := w.consume(w.queue)
	arrived.onlyCount()
	for range sized(1, 5) {
		before := arrived.distinct()
		r := w.start()
		within(t, "the first thousands", time.Second, func() {
			w.eventually("they arrive", func() bool { return arrived.distinct() > before+2000 })
		})
		r.kill()
	}
	w.exec(`TRUNCATE outbox`)
}
