package e2e

import (
	"strconv"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// arrivals returns the time of each arrival on the database's clock. It can be late by the time of the query, but never
// early.
func (w *world) arrivals(l *ledger) map[string]time.Time {
	w.t.Helper()
	began := time.Now()
	ahead := value[time.Time](w, `SELECT clock_timestamp()`).Sub(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	times := make(map[string]time.Time, len(l.at))
	for id, at := range l.at {
		times[id] = at.Add(ahead)
	}
	return times
}

// There are thousands of them, and none leaves before its time.
func TestScheduledRowsLeaveWithinAPollIntervalOfTheirTime(t *testing.T) {
	w, arrived := consuming(t)
	w.run()
	const rows, interval = 5000, time.Second
	due := make(map[string]time.Time)
	type scheduled struct {
		ID string
		At time.Time
	}
	list := query[scheduled](w, `INSERT INTO outbox (routing_key, payload, available_at)
		SELECT $1, '{}', t.at FROM (SELECT now() + interval '2 s' AS at) t, generate_series(1, $2)
		RETURNING message_id::text AS id, available_at AS at`, w.queue, rows)
	for _, s := range list {
		due[s.ID] = s.At
	}
	w.eventually("all arrive", func() bool { return arrived.distinct() == rows })
	first, late := time.Hour, time.Duration(0)
	for id, at := range w.arrivals(arrived) {
		if early := due[id].Sub(at); early > time.Millisecond {
			t.Fatalf("a message arrived %s before its time", early)
		}
		first, late = min(first, at.Sub(due[id])), max(late, at.Sub(due[id]))
	}
	// They are found within an interval. Publishing then takes up to some seconds on a machine that is busy with other
	// tests.
	inTime(t, "the first arrived after its time by", first, interval+500*time.Millisecond)
	inTime(t, "the last arrived after its time by", late, interval+4*time.Second)
	w.emptied()
	noDuplicates(t, arrived)
	w.noMarks(arrived)
}

// It exits with 0 if the table is empty, and with 1 if the broker is down.
func TestDrainPublishesWaitingRowsAndExits(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	w.exec(`INSERT INTO outbox (routing_key, payload, ordering_key, available_at)
		SELECT $1, to_json(n), CASE WHEN n % 2 = 0 THEN (n % 100)::text END, CASE WHEN n % 5 = 0 THEN now() - interval '1 h' END
		FROM generate_series(1, 3000) n`, w.queue)
	later := w.insert(row{"available_at": value[time.Time](w, `SELECT now() + interval '1 h'`)})
	w.exec(`INSERT INTO outbox (id, routing_key, payload) VALUES (1000000, $1, '{}')`, w.queue) // above the sequence's value
	arrived := w.consume(w.queue)

	broker := w.broker
	w.broker = "amqp://guest:guest@" + services.NewProxy(t, "127.0.0.1:1").Addr()
	within(t, "reporting that the broker is unavailable", 5*time.Second, func() {
		w.fails([]string{"drain", "--send-timeout", "500ms"}, "the publisher is connecting")
	})
	w.broker = broker
	w.noAttempts()
	w.succeeds("drain")
	if left := query[string](w, `SELECT message_id::text FROM outbox`); len(left) != 1 || left[0] != later {
		t.Errorf("%d rows are left, want the one that is scheduled", len(left))
	}
	w.eventually("all have arrived", func() bool { return arrived.distinct() == 3001 })
	noDuplicates(t, arrived)
	w.noDeadLetters()
}

// It publishes the rows that waited at its start.
func TestDrainEndsDuringContinuousInserts(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	w.exec(`INSERT INTO outbox (routing_key, payload, ordering_key)
		SELECT $1, to_json(n), CASE WHEN n % 2 = 0 THEN (n % 100)::text END FROM generate_series(1, 2000) n`, w.queue)
	arrived := w.consume(w.queue)
	w.write(2)
	w.succeeds("drain")
	if left := value[int](w, `SELECT count(*) FROM outbox WHERE id <= 2000`); left > 0 {
		t.Errorf("%d of the 2000 rows that waited at the start of the drain are left at its end", left)
	}
	waited := func() (n int) {
		for _, d := range arrived.all() {
			if i, err := strconv.Atoi(string(d.Body)); err == nil && i <= 2000 {
				n++
			}
		}
		return n
	}
	w.eventually("all waiting messages have arrived", func() bool { return waited() >= 2000 })
	arrived.allMarked()
}
