package e2e

import "testing"

// Rows inserted after TRUNCATE … RESTART IDENTITY are distinguished from earlier rows with the same ids.
func TestReusedIDsAfterTruncateArePublished(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	r := w.run("--backoff-time", "1h")
	total := 0
	for range 5 {
		w.exec(`INSERT INTO outbox (routing_key, payload) SELECT $1, '{}' FROM generate_series(1, 200)`, w.queue)
		total += 200
		w.eventually("they arrive", func() bool { return arrived.distinct() == total })
		w.exec(`TRUNCATE outbox RESTART IDENTITY`) // some rows may still be there, delivered and not yet deleted
	}
	w.insert(row{"exchange": "nowhere"}) // waits for its retry
	w.eventually("the row waits for its retry", func() bool { return value[int](w, `SELECT coalesce(max(attempts), 0) FROM outbox`) == 1 })
	w.exec(`TRUNCATE outbox`)
	w.await(arrived, w.insert(row{"ordering_key": "k"}))
	w.emptied()
	w.eventually("nothing is in flight any more", func() bool { return r.metric("cdc_relay_messages_in_flight") == 0 })
	noDuplicates(t, arrived)
	w.noDeadLetters()
}
