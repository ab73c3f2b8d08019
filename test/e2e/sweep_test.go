package e2e

import (
	"fmt"
	"strconv"
	"strings"
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

// What it had in flight leaves again, marked.
func TestAPollingStandbyTakesOverFromAKilledLeader(t *testing.T) {
	t.Parallel()
	p := newProxied(t)
	arrived := p.consume(p.queue)
	args := []string{"--mode", "poll", "--poll-interval", "200ms"}
	leads := p.run(args...)
	p.rabbit.BlackHole(services.Downstream)
	p.exec(`INSERT INTO outbox (routing_key, ordering_key, payload)
		SELECT $1, CASE WHEN n > 20 THEN 'k' END, json_build_object('k', CASE WHEN n > 20 THEN 'k' END, 'n', n - 20) FROM generate_series(1, 40) n`, p.queue)
	leads.inFlight(10)
	standby := p.with("CDC_RELAY_AMQP_URL=" + p.broker).run(args...)
	p.eventually("the other is a standby", standby.standsBy)
	began := time.Now()
	leads.kill()
	p.eventually("all arrive", func() bool { return arrived.distinct() == 40 })
	inTime(t, "publishing by the other relay", time.Since(began), 2*time.Second)
	p.emptied()
	if marked(arrived) == 0 {
		t.Error("none is marked")
	}
	arrived.allMarked()
	p.inOrder(arrived, map[string]int{"k": 20})
}

// The new relay marks all that was due when its term began.
func TestAScheduledMessageIsMarkedIfServerAndRelayAreLostTogether(t *testing.T) {
	t.Parallel()
	server := services.PrivatePostgres(t)
	w := newWorldOn(t, server.Database(t), services.VHost(t)).setUp()
	behind, proxy := w.behindBroker()
	arrived := w.consume(w.queue)
	r := behind.run()
	w.await(arrived, w.insert(nil))
	w.emptied()
	proxy.BlackHole(services.Downstream) // no confirm comes
	w.exec(`INSERT INTO outbox (routing_key, payload, available_at) VALUES ($1, '1', now())`, w.queue)
	w.eventually("it arrives", func() bool { return len(arrived.all()) == 2 })
	must(t, "kill", server.Kill(t.Context()))
	r.kill()
	must(t, "start", server.Start(t.Context()))
	w.db.Reset()
	w.run()
	w.eventually("it arrives again", func() bool { return len(arrived.all()) == 3 })
	if arrived.unmarkedDuplicates() > 0 {
		t.Error("the second has no mark")
	}
}

// Polling relays and drain do the same. The cost of finding the oldest row of each key depends on the number of keys.
func TestALongBacklogOfFewKeysLeavesAtOnce(t *testing.T) {
	services.Thorough(t, "fills a table")
	for _, keys := range []int{1, 100} {
		t.Run(fmt.Sprint(keys), func(t *testing.T) {
			w := newWorld(t).plainly().setUp()
			w.exec(`INSERT INTO outbox (routing_key, ordering_key, payload)
				SELECT $1, 'k' || n % $2, json_build_object('k', 'k' || n % $2, 'n', n / $2 + 1) FROM generate_series(0, $3 - 1) n`,
				w.queue, keys, sized(200_000, 2_000_000))
			arrived := w.consume(w.queue)
			r := w.start("--mode", "poll")
			within(t, "the first thousand, polled", 4*time.Second, func() {
				w.eventually("they arrive", func() bool { return arrived.distinct() > 1000 })
			})
			r.kill()
			drained := make(chan struct{})
			before := arrived.distinct()
			go func() {
				defer close(drained)
				w.command("drain")
			}()
			within(t, "the next thousand, drained", 4*time.Second, func() {
				w.eventually("they arrive", func() bool { return arrived.distinct() > before+1000 })
			})
			w.exec(`DELETE FROM outbox WHERE id > (SELECT min(id) + 2000 FROM outbox)`)
			w.eventually("the drain ends", func() bool {
				select {
				case <-drained:
					return true
				default:
					return false
				}
			})
			w.inOrder(arrived, nil)
		})
	}
}

// The row is set aside, and named.
func TestAnUnchangeableRowDelaysNoOther(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string][]string{"streaming": nil, "polling": {"--mode", "poll"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, arrived := consuming(t)
			w.exec(`CREATE TABLE refers (id bigint REFERENCES outbox (id))`)
			w.exec(`ALTER TABLE outbox ALTER routing_key DROP NOT NULL`)
			r := w.run(append(mode, "--poll-interval", "100ms", "--max-retries", "3", "--backoff-time", "10ms")...)
			w.exec(`WITH bad AS (INSERT INTO outbox (routing_key, payload) VALUES ($1, '{}') RETURNING id) INSERT INTO refers SELECT id FROM bad`, w.queue)
			w.exec(`INSERT INTO outbox (routing_key, payload, attempts) VALUES ('nowhere', '{}', 2147483647)`)
			w.exec(`INSERT INTO outbox (routing_key, payload) VALUES (NULL, '{}')`)
			w.exec(`INSERT INTO outbox (routing_key, payload, ordering_key) SELECT $1, to_json(n), CASE WHEN n % 2 = 0 THEN (n % 10)::text END
				FROM generate_series(1, 500) n`, w.queue)
			w.eventually("all others arrive", func() bool { return arrived.distinct() == 501 })
			w.eventually("all other rows are deleted", func() bool { return value[int](w, `SELECT count(*) FROM outbox`) == 2 })
			w.eventually("the relay reports the rows", func() bool {
				page, _ := r.get("/readyz")
				return r.metric("cdc_relay_rows_set_aside_total") == 2 && strings.Contains(page, "2 rows set aside, with ids") &&
					strings.Contains(r.logs(), "row_set_aside") && strings.Contains(r.logs(), "DROP CONSTRAINT refers_id_fkey")
			})
			if n := w.deadLetters(); n != 1 {
				t.Errorf("%d dead letters, want the row with too many attempts", n)
			}
			w.exec(`DROP TABLE refers`)
			w.eventually("the row is deleted once it can be", func() bool { return value[int](w, `SELECT count(*) FROM outbox`) == 1 })
			noDuplicates(t, arrived)
		})
	}
}

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
	w, proxy := w.behindPostgres()
	proxy.Slow(1 << 20)
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
