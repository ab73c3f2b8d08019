package e2e

import (
	"testing"
	"time"
)

// Rows inserted after TRUNCATE … RESTART IDENTITY are distinguished from earlier rows with the same ids.
func TestReusedIDsAfterTruncateArePublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	arrived := w.consume(w.queue)
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

// They block their key until a newer relay runs.
func TestRowsOfAFutureVersionStayUntouched(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	insert := func() {
		w.insert(row{"schema_version": 2})
		w.insert(row{"schema_version": 2, "available_at": time.Now().Add(-time.Hour)})
		w.insert(row{"schema_version": 2, "ordering_key": "k"})
		w.insert(row{"ordering_key": "k", "payload": `"behind it"`})
	}
	insert()
	arrived := w.consume(w.queue)
	r := w.run("--poll-interval", "50ms")
	insert()
	before := value[string](w, `SELECT string_agg(o::text, ';' ORDER BY id) FROM outbox o`)
	w.await(arrived, w.insert(row{"ordering_key": "other"}))
	// A scheduled row shows that a sweep has read the due rows.
	w.await(arrived, w.insert(row{"available_at": value[time.Time](w, `SELECT clock_timestamp() + interval '300 ms'`)}))
	if n := arrived.distinct(); n != 2 {
		t.Errorf("%d messages arrived, want the two of the known version", n)
	}
	w.eventually("only rows of the future version are left", func() bool { return value[int](w, `SELECT count(*) FROM outbox`) == 8 })
	if after := value[string](w, `SELECT string_agg(o::text, ';' ORDER BY id) FROM outbox o`); after != before {
		t.Errorf("the rows were\n%s\nand are\n%s", before, after)
	}
	r.stopsWell()
	w.exec(`UPDATE outbox SET schema_version = 1`)
	w.run("--poll-interval", "50ms")
	w.emptied()
	w.eventually("all ten arrive", func() bool { return arrived.distinct() == 10 })
}
