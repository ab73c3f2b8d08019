package relay

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
)

// TestASmallWindowIsNotHeldByRowsToBeDeleted: a batch of deletes is written long before it is the whole
// window, and no sooner than it has to be.
func TestASmallWindowIsNotHeldByRowsToBeDeleted(t *testing.T) {
	for _, test := range []struct{ maxInFlight, batch, enough int }{
		{2000, 500, 500}, {2000, 100, 100}, {400, 500, 100}, {40, 500, 10}, {3, 500, 1}, {1, 500, 1},
	} {
		config := DefaultConfig()
		config.DatabaseURL, config.MaxInFlight, config.BatchSize = "postgres://localhost/none", test.maxInFlight, test.batch
		publisher, err := publish.NewAMQP(publish.AMQPConfig{URL: "amqp://localhost", MaxInFlight: test.maxInFlight})
		if err != nil {
			t.Fatal(err)
		}
		r, err := New(config, publisher, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		r.core.tookSlot(holding{pid: 1})
		r.core.publisherReady(true)
		for n := 1; n <= test.enough; n++ {
			if len(r.settler.hurried) > 0 {
				t.Errorf("window %d, batch %d: %d rows are not waited with", test.maxInFlight, test.batch, n-1)
			}
			m, v := r.core.streamed(&outbox.Message{ID: int64(n)}, 1, true)
			if v != taken {
				t.Fatalf("row %d of a window of %d: %v", n, test.maxInFlight, v)
			}
			r.settler.deliver(outbox.Result{Message: m, Outcome: outbox.Confirmed})
		}
		if len(r.settler.hurried) == 0 || !r.settler.full() {
			t.Errorf("window %d, batch %d: %d rows wait for more", test.maxInFlight, test.batch, test.enough)
		}
	}
}
