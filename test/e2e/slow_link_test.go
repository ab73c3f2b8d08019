package e2e

import (
	"testing"
	"time"
)

// Over a slow connection to Postgres, a large row and a page of medium rows take long. They leave nevertheless, and other
// due rows do not wait for the large row.
func TestRowsLeaveOverASlowConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	const body = `(SELECT decode(string_agg(md5(random()::text || g), ''), 'hex') FROM generate_series(1, $2::int / 16) g WHERE n > 0)`
	rows := query[string](w, `INSERT INTO outbox (routing_key, payload_bytes)
		SELECT $1, `+body+` FROM generate_series(1, 12) n RETURNING message_id::text`, w.queue, 500_000)
	large := value[string](w, `INSERT INTO outbox (routing_key, payload_bytes, ordering_key)
		SELECT $1, `+body+`, 'k' FROM (SELECT 1) t(n) RETURNING message_id::text`, w.queue, 9<<20)
	behind := w.insert(row{"ordering_key": "k"})
	arrived := w.consume(w.queue)
	proxy, address := through(t, w.database)
	proxy.Slow(1 << 20)
	w.database = address
	w.run("--poll-interval", "200ms")
	for range 5 {
		w.await(arrived, w.insert(row{"available_at": time.Now()}))
	}
	if arrived.count(large) > 0 {
		t.Error("due rows have waited for a large row")
	}
	for _, id := range append(rows, large, behind) {
		w.await(arrived, id)
	}
	w.emptied()
	noDuplicates(t, arrived)
	w.noAttempts()
}
