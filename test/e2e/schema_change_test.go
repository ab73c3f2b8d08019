package e2e

import (
	"testing"
	"time"
)

// A column that the relay does not need can be added, renamed and dropped while it runs, also in a transaction that
// inserts.
func TestColumnsUnknownToTheRelayMayChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	arrived := w.consume(w.queue)
	r := w.run()
	w.await(arrived, w.insert(nil))
	w.exec(`ALTER TABLE outbox ADD COLUMN note text NOT NULL DEFAULT 'x', ADD COLUMN doubled bigint GENERATED ALWAYS AS (id * 2) STORED`)
	w.await(arrived, w.insert(row{"note": "n"}))
	w.exec(`ALTER TABLE outbox RENAME COLUMN note TO "My Note"`)
	w.await(arrived, w.insert(row{`"My Note"`: "n"}))
	tx, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`INSERT INTO outbox (routing_key, payload) VALUES ('` + w.queue + `', '"before"')`,
		`ALTER TABLE outbox DROP COLUMN "My Note", ADD COLUMN other jsonb`,
		`INSERT INTO outbox (routing_key, payload, other) VALUES ('` + w.queue + `', '"after"', '{}')`,
	} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.await(arrived, w.insert(nil))
	w.emptied()
	w.eventually("both rows of the transaction arrive", func() bool {
		n := bodies(arrived)
		return n[`"before"`] == 1 && n[`"after"`] == 1
	})
	noDuplicates(t, arrived)
	if r.exited() {
		t.Error("the relay ended")
	}
}

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

// The slot advances while only other tables are written.
func TestAnIdleOutboxRetainsNoWAL(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	w.run()
	w.exec(`CREATE TABLE other (filler text)`)
	for range 10 {
		w.exec(`INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 5000)`)
	}
	target := value[string](w, `SELECT pg_current_wal_flush_lsn()::text`)
	w.eventually("the slot has advanced", func() bool {
		return value[bool](w, `SELECT confirmed_flush_lsn >= $1::pg_lsn FROM pg_replication_slots WHERE slot_name = $2`, target, w.slot)
	})
	w.eventually("the slot lags by less than a megabyte", func() bool {
		return value[bool](w, `SELECT pg_current_wal_flush_lsn() - confirmed_flush_lsn < 1000000
			FROM pg_replication_slots WHERE slot_name = $1`, w.slot)
	})
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
	if code := r.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	w.exec(`UPDATE outbox SET schema_version = 1`)
	w.run("--poll-interval", "50ms")
	w.emptied()
	w.eventually("all ten arrive", func() bool { return arrived.distinct() == 10 })
}
