package e2e

import "testing"

// Rows that are inserted after a large transaction leave while its rows wait: most of them before half of it has left.
func TestALargeTransactionDoesNotDelayOthers(t *testing.T) {
	w := newWorld(t).plainly().setUp()
	other := w.queue + "-other"
	w.declareQueue(other, nil)
	large, others := w.consume(w.queue), w.consume(other)
	w.run()
	rows, few := sized(40_000, 1_000_000), 20
	w.exec(`INSERT INTO outbox (routing_key, payload) SELECT $1, to_json(n) FROM generate_series(1, $2) n`, w.queue, rows)
	for range few {
		w.insert(row{"routing_key": other})
	}
	w.eventually("most of the others arrive", func() bool { return others.distinct() > few*3/4 })
	left := large.distinct()
	t.Logf("%d of %d rows of the large transaction have left", left, rows)
	if left > rows/2 {
		t.Error("the others waited for them")
	}
	w.eventually("all arrive", func() bool { return large.distinct() == rows && others.distinct() == few })
	noDuplicates(t, large)
	noDuplicates(t, others)
}
