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
	const rows = 4
	r, registry := i.confirmed(rows)
	r.settler.invisible = r.settler.take()
	r.core.turnedInvisible(r.settler.invisible)

	end := r.settle(t)
	i.await("all rows to be settled", func() bool { return r.settler.written.Load() == rows })
	end()
	wantSettled(t, registry, 2, rows)
}

// TestRowsAreCountedWhenTheyAreWritten, not each time that this is tried in vain.
func TestRowsAreCountedWhenTheyAreWritten(t *testing.T) {
	i := newInstance(t)
	r, registry := i.confirmed(2)
	tx, err := i.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox WHERE id = 1 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	end := r.settle(t)
	i.await("one row to be settled", func() bool { return r.settler.written.Load() == 1 })
	i.await("the other to be found locked", func() bool { return r.settler.locked.current() != "" })
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	i.await("both rows to be settled", func() bool { return r.settler.written.Load() == 2 })
	end()
	wantSettled(t, registry, 2, 2)
}

// confirmed is a relay whose first rows, without a key, the broker has confirmed, to be settled by the test.
func (i *instance) confirmed(rows int64) (settling, *prometheus.Registry) {
	i.t.Helper()
	registry := prometheus.NewRegistry()
	r, err := New(i.config, i.publisher(), slog.New(slog.DiscardHandler), registry)
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(r.Close)
	r.core.tookSlot(holding{pid: 1})
	r.core.publisherReady(true)
	for id := int64(1); id <= rows; id++ {
		row := &outbox.Message{ID: id}
		if err := i.db.QueryRow(i.t.Context(), `INSERT INTO outbox (id, routing_key, payload) OVERRIDING SYSTEM VALUE
			VALUES ($1, 'r', '1') RETURNING message_id`, id).Scan((*[16]byte)(&row.MessageID)); err != nil {
			i.t.Fatal(err)
		}
		m, _ := r.core.streamed(row, 1, true)
		r.settler.deliver(outbox.Result{Message: m, Outcome: outbox.Confirmed})
	}
	return settling{r}, registry
}

// settling is a relay of which nothing runs but the settler.
type settling struct{ *Relay }

func (r settling) settle(t *testing.T) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.settler.run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

func wantSettled(t *testing.T, registry prometheus.Gatherer, statements uint64, rows float64) {
	t.Helper()
	settled := scrapeOf(t, registry).histograms["cdc_relay_settle_batch_rows"]
	if n, sum := settled.GetSampleCount(), settled.GetSampleSum(); n != statements || sum != rows {
		t.Errorf("%v rows were settled by %d statements, want %v by %d", sum, n, rows, statements)
	}
}
