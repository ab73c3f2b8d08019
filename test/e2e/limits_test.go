package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// A new relay finds the rows in the table, works on them for a while and publishes new rows meanwhile.
func TestMemoryStaysBoundedWithAnyBacklog(t *testing.T) {
	if !long() {
		t.Parallel()
	}
	const text = `json_build_object('n', n, 'text', repeat('x', 300))`
	rows := sized(60_000, 1_000_000)
	for name, c := range map[string]struct {
		rows int
		sql  string // $1 is the queue, $2 the number of rows
	}{
		"failed rows that wait for their retry": {rows, `INSERT INTO outbox (routing_key, payload, attempts, last_error, available_at)
			SELECT $1 || 'nobody', ` + text + `, 1, 'unroutable: seen before', clock_timestamp() + n * interval '0.1 ms' FROM generate_series(1, $2) n`},
		"one key behind a row that fails": {rows, `INSERT INTO outbox (routing_key, payload, ordering_key)
			SELECT CASE n WHEN 1 THEN $1 || 'nobody' ELSE $1 END, ` + text + `, 'k' FROM generate_series(1, $2) n`},
		"as many keys, each behind a row that fails": {rows, `INSERT INTO outbox (routing_key, payload, ordering_key)
			SELECT CASE WHEN n <= $2 / 2 THEN $1 || 'nobody' ELSE $1 END, ` + text + `, 'key number ' || n % ($2 / 2) FROM generate_series(1, $2) n`},
		"as many keys": {rows, `INSERT INTO outbox (routing_key, payload, ordering_key)
			SELECT $1, ` + text + `, 'key number ' || n FROM generate_series(1, $2) n`},
		"a backlog": {sized(100_000, 10_000_000), `INSERT INTO outbox (routing_key, payload)
			SELECT $1, ` + text + ` FROM generate_series(1, $2) n`},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "as many keys" {
				services.Thorough(t, "one kind of backlog is enough")
			}
			if !long() {
				t.Parallel()
			}
			w := newWorld(t).plainly().setUp()
			w.exec(c.sql, w.queue, c.rows)
			arrived := w.consume(w.queue)
			arrived.onlyCount()
			r := w.run("--max-retries", "1000", "--backoff-time", "2s", "--max-backoff", "2s")
			// New rows are streamed once the server has decoded the WAL of the waiting ones.
			w.eventually("the stream has caught up", func() bool {
				return r.says("/readyz", "stream: ready, streaming")
			})
			deadline := time.After(sized(3*time.Second, time.Minute))
			slowest := time.Duration(0)
			for over := false; !over; {
				inserting := time.Now()
				id := w.insert(nil)
				w.eventually("a new row arrives", func() bool { return arrived.count(id) > 0 })
				slowest = max(slowest, time.Since(inserting))
				select {
				case <-deadline:
					over = true
				default:
				}
			}
			w.eventually("the relay has worked on the backlog", func() bool { return r.rejections() > 0 || arrived.distinct() >= 1000 })
			t.Logf("%d MB resident; a new row took %s at most", r.residentMB(), slowest.Round(time.Millisecond))
			if mb := r.residentMB(); mb >= sized(85, 150) { // memory is collected late
				t.Errorf("the relay took %d MB", mb)
			}
		})
	}
}

// long reports whether the tests of limits run at the promised size instead of a small one.
func long() bool { return os.Getenv("CDC_RELAY_LONG") == "1" }

func sized[T any](usual, full T) T {
	if long() {
		return full
	}
	return usual
}

// promised scales a time that docs/guarantees.md promises: it is exact with CDC_RELAY_LONG=1. The usual run has several
// packages side by side, with the race detector, on two cores. There it allows several times as long, which still
// detects a relay that waits for a timeout.
func promised(most time.Duration) time.Duration { return sized(5*most, most) }

// plainly builds the relay without the race detector, which needs several times the memory and the time.
func (w *world) plainly() *world {
	w.t.Helper()
	var err error
	if w.binary, err = build("cdc-relay-plain", false); err != nil {
		w.t.Fatal(err)
	}
	return w
}

// says reports whether a page has a line with this beginning.
func (r *relay) says(path, line string) bool {
	page, _ := r.get(path)
	return strings.Contains("\n"+page, "\n"+line)
}

// There are more keys than the relay remembers. Every batch is received as fast as the first, and afterwards all keys
// leave in order.
func TestManyKeysWaitWhileTheBrokerIsDown(t *testing.T) {
	services.Thorough(t, "fills a table")
	w, proxy := newWorld(t).plainly().setUp().behindBroker()
	arrived := w.consume(w.queue)
	r := w.run()
	proxy.Refuse()
	proxy.Cut()
	const batch = 40_000
	batches := sized(5, 25)
	first := time.Duration(0)
	for n := range batches {
		w.exec(`INSERT INTO outbox (routing_key, ordering_key, payload)
			SELECT $1, 'key ' || n, json_build_object('k', 'key ' || n, 'n', 1) FROM generate_series($2::int, $3::int) n`,
			w.queue, n*batch, (n+1)*batch-1)
		began := time.Now()
		w.eventually("the slot advances", func() bool { return w.lag().Confirmed < 1 })
		took := time.Since(began)
		if n == 0 {
			first = took
		}
		t.Logf("batch %d was received in %s", n, took.Round(time.Millisecond))
		inTime(t, "receiving a batch", took, 4*first+2*time.Second)
	}
	w.exec(`INSERT INTO outbox (routing_key, ordering_key, payload)
		SELECT $1, 'key ' || n, json_build_object('k', 'key ' || n, 'n', 2) FROM generate_series(0, $2::int) n`, w.queue, batch-1)
	if mb := r.residentMB(); mb > 150 {
		t.Errorf("the relay takes %d MB", mb)
	} else {
		t.Logf("the relay takes %d MB", mb)
	}
	proxy.Accept()
	total := (batches + 1) * batch
	w.eventually("all arrive", func() bool { return arrived.distinct() == total })
	w.emptied()
	w.inOrder(arrived, nil)
	id := w.insert(row{"ordering_key": "key 7"})
	w.await(arrived, id)
}

// lag is how far a slot is behind, in MB.
type lag struct {
	Confirmed float64 // by the confirmed position
	Retained  float64 // by the WAL that the server retains for it
}

func (w *world) lag() lag {
	w.t.Helper()
	return query[lag](w, `SELECT (pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn) / 1e6)::float8 AS confirmed,
		(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) / 1e6)::float8 AS retained
		FROM pg_replication_slots WHERE slot_name = $1`, w.slot)[0]
}

func TestAnIdleRelayMakesFewQueries(t *testing.T) {
	services.Thorough(t, "measures the speed")
	t.Parallel()
	w := newWorld(t).plainly().setUp()
	transactions := func() float64 {
		return value[float64](w, `SELECT (xact_commit + xact_rollback)::float8 FROM pg_stat_database WHERE datname = current_database()`)
	}
	for _, most := range []float64{3, 8} { // one that streams, and another one that stands by
		w.run()
		perSecond := most + 1
		for n := 0; perSecond > most && n < 10; n++ { // idle sessions report their start up to ten seconds later
			began, before := time.Now(), transactions()
			<-time.After(sized(4*time.Second, time.Minute))
			perSecond = (transactions() - before) / time.Since(began).Seconds()
		}
		if perSecond > most {
			t.Errorf("%.1f transactions a second, want at most %.0f", perSecond, most)
		}
	}
}
