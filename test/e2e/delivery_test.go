package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// load inserts n rows from several connections, half by single INSERTs and half by COPY in batches.
func (w *world) load(n, connections int) {
	w.t.Helper()
	var wg sync.WaitGroup
	each := n / connections
	for c := range connections {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := w.loadOne(w.t.Context(), each, c%2 == 0); err != nil {
				w.t.Error(err)
			}
		}()
	}
	wg.Wait()
}

func (w *world) loadOne(ctx context.Context, n int, copying bool) error {
	const batch = 100
	for i := 0; i < n; i += batch {
		var err error
		if copying {
			rows := make([][]any, batch)
			for j := range rows {
				rows[j] = []any{w.queue, fmt.Sprintf(`{"n": %d}`, i+j)}
			}
			err = copyInto(ctx, w.db, rows)
		} else {
			_, err = w.db.Exec(ctx, `INSERT INTO outbox (routing_key, payload)
				SELECT $1, json_build_object('n', n) FROM generate_series($2::int, $3::int) n`, w.queue, i, i+batch-1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func TestACleanRestartNeitherLosesNorDuplicates(t *testing.T) {
	w, arrived := consuming(t)
	const rows = 20_000
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		w.load(rows, 4)
	}()
	for i := range 4 {
		r := w.run()
		atLeast := rows / 5 * (i + 1)
		w.eventually("some rows arrive", func() bool { return arrived.distinct() >= atLeast })
		r.stopsWell()
	}
	<-loaded
	w.run()
	w.eventually("all rows arrive", func() bool { return arrived.distinct() == rows })
	w.eventually("the table is empty", w.outboxEmpty)
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
