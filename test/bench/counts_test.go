package bench

import (
	"context"
	"maps"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/program"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// counts are what a relay did, by name. As bounds, they are the maximum for each message. They hardly depend on the
// speed of the machine, so a change that makes the relay more expensive fails everywhere. Frames, bytes and WAL vary by
// less than a hundredth, and the bounds are 1 to 12 % above. The others are about a third above the measured value;
// writes vary more, because a busy machine wakes threads more often.
type counts map[string]float64

const (
	statements  = "SQL statements"
	walRecords  = "WAL records"
	walBytes    = "bytes of WAL"
	updates     = "updates of rows"
	frames      = "AMQP frames"
	sentBytes   = "bytes to the broker"
	writes      = "writing system calls"
	allocations = "allocations"
)

const (
	countedMessages = 10_000
	countedBytes    = 300
	countedBatch    = 500 // messages of a streamed transaction; less than MaxInFlight
)

// A relay starts with a backlog.
func TestTheCostOfADrainIsBounded(t *testing.T) {
	c := newCounting(t, 0)
	c.drains(t, counts{
		statements: 0.016, walRecords: 1.1, walBytes: 90, updates: 0.01,
		frames: 3.02, sentBytes: countedBytes + 150, writes: 0.2, allocations: 70,
	})
}

// The heads of the keys are found, and each look-up takes several rows of a key.
func TestTheCostOfADrainWithKeysIsBounded(t *testing.T) {
	c := newCounting(t, countedMessages/20)
	c.drains(t, counts{
		statements: 0.024, walRecords: 2.2, walBytes: 145, updates: 0.01,
		frames: 3.02, sentBytes: countedBytes + 150, writes: 0.2, allocations: 80,
	})
}

// drains counts all that a relay does from its start until a backlog is published and it has stopped.
func (c *counting) drains(t *testing.T, most counts) {
	t.Helper()
	c.fill(t, 0, countedMessages)
	c.mark(t)
	relay := startCounted(t, c.database, c.broker, c.slot)
	c.awaitEmpty(t)
	all := c.counts(relay.stop(t))
	maps.Copy(all, c.written(t))
	all.leaveOutLate()
	all.check(t, countedMessages, most)
}

// A relay streams transactions of 500 messages. Each is written after the previous one is done: if the stream fell
// behind, sweeps would publish rows.
func TestTheCostOfAStreamIsBounded(t *testing.T) {
	newCounting(t, 0).streams(t, counts{
		statements: 0.015, walRecords: 3.3, walBytes: 580, updates: 0,
		frames: 3.02, sentBytes: countedBytes + 120, writes: 0.6, allocations: 60,
	})
}

// The same, and each message of a transaction has another key. The INSERT writes into one more index.
func TestTheCostOfAStreamWithKeysIsBounded(t *testing.T) {
	newCounting(t, countedBatch).streams(t, counts{
		statements: 0.015, walRecords: 4.3, walBytes: 680, updates: 0,
		frames: 3.02, sentBytes: countedBytes + 120, writes: 0.6, allocations: 60,
	})
}

// streams counts what a relay does for a stream, after its first batch. The WAL is that of the INSERTs too.
func (c *counting) streams(t *testing.T, most counts) {
	t.Helper()
	const rounds, batches = 4, countedMessages / countedBatch / 4
	c.cheapest(t, rounds, batches, countedBatch).check(t, batches*countedBatch, most)
}

// At a low rate nothing can be batched: each message is written after the previous one is done.
func TestTheCostOfASingleMessageIsBounded(t *testing.T) {
	const rounds, messages = 20, 5
	newCounting(t, 0).cheapest(t, rounds, messages, 1).check(t, messages, counts{
		statements: 2, walRecords: 5.2, walBytes: 665, updates: 0,
		frames: 3.02, sentBytes: countedBytes + 120, writes: 4.5, allocations: 155,
	})
}

// cheapest counts what a relay does in each of some rounds, and returns the least of each count. Timed work (checks of
// the stream, answers to the server) adds to some rounds, and more on a slow machine. A round has transactions with so
// many messages, each after the previous one is done.
func (c *counting) cheapest(t *testing.T, rounds, transactions, messages int) (least counts) {
	t.Helper()
	relay := startCounted(t, c.database, c.broker, c.slot)
	c.awaitStreaming(t)
	n := 0
	send := func() {
		c.fill(t, n, n+messages)
		c.awaitEmpty(t)
		n += messages
	}
	send()
	for round := range rounds {
		before := c.counts(relay.spent(t))
		c.mark(t)
		for range transactions {
			send()
		}
		spent := c.counts(relay.spent(t)).since(before)
		maps.Copy(spent, c.written(t))
		for name := range spent {
			if round > 0 {
				spent[name] = min(spent[name], least[name])
			}
		}
		least = spent
	}
	relay.stop(t)
	return least
}

// counting has a tap in front of the servers, and addresses that bypass them.
type counting struct {
	conn             *pgx.Conn
	from             string // the position in the WAL of the last mark
	spec             Spec
	slot             string
	database, broker string // through the taps
	tap              tap
}

func newCounting(t *testing.T, keys int) *counting {
	t.Helper()
	c := &counting{slot: services.Name(t), spec: Spec{Bytes: countedBytes, Keys: keys, Queue: "counted"}}
	// The WAL depends only on what the sessions write: no checkpoint adds images of pages, and no vacuum runs.
	server := services.PrivatePostgres(t,
		"full_page_writes=off", "autovacuum=off", "checkpoint_timeout=1h", "max_wal_size=4GB")
	database, broker := server.Database(t), services.VHost(t)
	var err error
	if c.conn, err = pgx.Connect(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.conn.Close(context.Background()) })
	if _, _, err := migrations.Up(t.Context(), c.conn, outbox.Table{Schema: "public", Name: "outbox"}); err != nil {
		t.Fatal(err)
	}
	declareShort(t, broker, c.spec.Queue)
	c.exec(t, "CREATE EXTENSION pg_walinspect")
	c.database, c.broker = c.tap.in(t, database, c.tap.postgres), c.tap.in(t, broker, c.tap.amqp)
	return c
}

// declareShort declares a queue that keeps few messages: nobody consumes it.
func declareShort(t *testing.T, broker, queue string) {
	t.Helper()
	channel, err := services.DialAMQP(t, broker).Channel()
	services.Must(t, err)
	short := map[string]any{"x-max-length": int32(1)}
	if _, err := channel.QueueDeclare(queue, true, false, true, false, short); err != nil {
		t.Fatal(err)
	}
}

func (c *counting) fill(t *testing.T, from, to int) {
	t.Helper()
	services.Must(t, fill(t.Context(), c.conn, c.spec, from, to))
}

func (c *counting) awaitEmpty(t *testing.T) { c.await(t, isEmpty) }

func (c *counting) awaitStreaming(t *testing.T) { c.await(t, isStreaming, c.slot) }

func (c *counting) await(t *testing.T, condition string, args ...any) {
	t.Helper()
	services.Must(t, program.Poll(t.Context(), func() (bool, error) {
		return holds(t.Context(), c.conn, condition, args...)
	}))
}

// counts returns the counts up to now.
func (c *counting) counts(s spent) counts {
	return counts{
		statements: float64(c.tap.statements.Load()),
		frames:     float64(c.tap.frames.Load()), sentBytes: float64(c.tap.sent.Load()),
		writes: float64(s.Writes), allocations: float64(s.Allocations),
	}
}

// mark sets the start of what written returns.
func (c *counting) mark(t *testing.T) {
	t.Helper()
	c.flush(t)
	c.from = c.position(t)
}

// flush flushes all WAL so far, by a commit.
func (c *counting) flush(t *testing.T) {
	t.Helper()
	c.exec(t, "SELECT pg_logical_emit_message(true, 'mark', '')")
}

// position returns the end of the WAL.
func (c *counting) position(t *testing.T) (end string) {
	t.Helper()
	services.Must(t, c.conn.QueryRow(t.Context(), "SELECT pg_current_wal_insert_lsn()::text").Scan(&end))
	return end
}

func (c *counting) exec(t *testing.T, sql string) {
	t.Helper()
	_, err := c.conn.Exec(t.Context(), sql)
	services.Must(t, err)
}

// written returns the WAL since the mark. It leaves out what is written at times (running transactions, a checkpoint),
// and what a scan writes when it finds rows that are dead by then (pruning).
func (c *counting) written(t *testing.T) counts {
	t.Helper()
	const sum = `
SELECT coalesce(sum(count), 0)::float8, coalesce(sum(combined_size), 0)::float8,
       coalesce(sum(count) FILTER (WHERE "resource_manager/record_type" ~ '^Heap/(HOT_)?UPDATE'), 0)::float8
FROM pg_get_wal_stats($1::text::pg_lsn, $2::text::pg_lsn, true)
WHERE "resource_manager/record_type" !~ '^(Standby|XLOG)/' AND "resource_manager/record_type" !~ 'PRUNE'`
	var records, bytes, updated float64
	end := c.position(t)
	c.flush(t) // its own record comes later
	row := c.conn.QueryRow(t.Context(), sum, c.from, end)
	services.Must(t, row.Scan(&records, &bytes, &updated))
	return counts{walRecords: records, walBytes: bytes, updates: updated}
}

// leaveOutLate leaves out what a drain writes for messages without an answer in time. Their number depends on the speed
// of the machine. Each such row is locked once more and updated, which adds an entry to two indexes.
func (c counts) leaveOutLate() {
	c[walRecords] -= 4 * c[updates]
	c[walBytes] -= 650 * c[updates]
}

func (c counts) since(before counts) counts {
	spent := make(counts)
	for name := range c {
		spent[name] = c[name] - before[name]
	}
	return spent
}

func (c counts) check(t *testing.T, messages int, most counts) {
	t.Helper()
	for name, bound := range most {
		saw := c[name] / float64(messages)
		t.Logf("%.4g %s for each message", saw, name)
		if saw > bound {
			t.Errorf("%.4g %s for each message, want at most %.4g: fix the change that made it more expensive, "+
				"or raise the bound and say why", saw, name, bound)
		}
	}
}
