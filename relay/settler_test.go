package relay

import (
	"context"
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

// TestAStatementTakesNoMoreThanABatch, also where rows that were not visible are tried again beside new ones.
func TestAStatementTakesNoMoreThanABatch(t *testing.T) {
	i := newInstance(t)
	i.config.BatchSize = 2
	publisher, err := publish.NewAMQP(publish.AMQPConfig{URL: i.amqp, MaxInFlight: i.config.MaxInFlight})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	r, err := New(i.config, publisher, slog.New(slog.DiscardHandler), registry)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.core.tookSlot(holding{pid: 1})
	r.core.publisherReady(true)
	const rows = 4
	for id := int64(1); id <= rows; id++ {
		if _, err := i.db.Exec(t.Context(), `INSERT INTO outbox (id, routing_key, payload) OVERRIDING SYSTEM VALUE VALUES ($1, 'r', '1')`, id); err != nil {
			t.Fatal(err)
		}
		m, _ := r.core.streamed(&outbox.Message{ID: id}, 1, true)
		r.settler.deliver(outbox.Result{Message: m, Outcome: outbox.Confirmed})
	}
	r.settler.invisible = r.settler.take()
	r.core.turnedInvisible(r.settler.invisible)

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.settler.run(ctx) }()
	i.await("all rows to be settled", func() bool { return r.settler.written.Load() == rows })
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	settled := scrapeOf(t, registry).histograms["cdc_relay_settle_batch_rows"]
	if statements, sum := settled.GetSampleCount(), settled.GetSampleSum(); statements != 2 || sum != rows {
		t.Errorf("%v rows were settled by %d statements, want %d by 2", sum, statements, rows)
	}
}
