package e2e

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// waiting is a table full of rows that a relay must not keep in memory.
type waiting struct {
	name string
	rows int
	sql  string // of a SELECT for the INSERT; $1 is the queue, $2 the number of rows
	// rejected: they always fail; otherwise the relay must make progress with them.
	rejected bool
}

func waitingRows() []waiting {
	const text = `json_build_object('n', n, 'text', repeat('x', 300))`
	rows := sized(60_000, 1_000_000)
	return []waiting{
		{"failed rows that wait for their retry", rows, `INSERT INTO outbox (routing_key, payload, attempts, last_error, available_at)
			SELECT $1 || 'nobody', ` + text + `, 1, 'unroutable: seen before', clock_timestamp() + n * interval '0.1 ms' FROM generate_series(1, $2) n`, true},
		{"one key behind a row that fails", rows, `INSERT INTO outbox (routing_key, payload, ordering_key)
			SELECT CASE n WHEN 1 THEN $1 || 'nobody' ELSE $1 END, ` + text + `, 'k' FROM generate_series(1, $2) n`, true},
		{"as many keys, each behind a row that fails", rows, `INSERT INTO outbox (routing_key, payload, ordering_key)
			SELECT CASE WHEN n <= $2 / 2 THEN $1 || 'nobody' ELSE $1 END, ` + text + `, 'key number ' || n % ($2 / 2) FROM generate_series(1, $2) n`, true},
		{"as many keys", rows, `INSERT INTO outbox (routing_key, payload, ordering_key)
			SELECT $1, ` + text + `, 'key number ' || n FROM generate_series(1, $2) n`, false},
		{"a backlog", sized(100_000, 10_000_000), `INSERT INTO outbox (routing_key, payload)
			SELECT $1, ` + text + ` FROM generate_series(1, $2) n`, false},
	}
}

// A new relay finds the rows in the table, works on them for a while and publishes new rows meanwhile.
func TestMemoryStaysBoundedWithAnyBacklog(t *testing.T) {
	if !long() {
		t.Parallel()
	}
	for _, c := range waitingRows() {
		t.Run(c.name, func(t *testing.T) {
			if c.name != "as many keys" {
				services.Thorough(t, "one kind of backlog is enough")
			}
			if !long() {
				t.Parallel()
			}
			w := newWorld(t).plainly().setUp()
			began := time.Now()
			w.exec(c.sql, w.queue, c.rows)
			t.Logf("%d rows inserted within %s", c.rows, time.Since(began).Round(time.Millisecond))
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
			w.eventually("the relay has worked on the backlog", func() bool {
				if c.rejected {
					return r.metric(`cdc_relay_messages_refused_total{reason="unroutable"}`) > 0
				}
				return arrived.distinct() >= 1000
			})
			rejected := r.metric(`cdc_relay_messages_refused_total{reason="unroutable"}`)
			t.Logf("%d MB resident; %.0f published, %.0f rejections; a new row took %s at most",
				r.residentMB(), r.metric("cdc_relay_messages_published_total"), rejected, slowest.Round(time.Millisecond))
			if mb := r.residentMB(); mb >= sized(85, 150) { // memory is collected late
				t.Errorf("the relay took %d MB", mb)
			}
		})
	}
}
