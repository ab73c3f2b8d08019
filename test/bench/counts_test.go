package bench

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// counts are what a relay did, by name. As bounds, they are the maximum for each message. They hardly depend on the
// speed of the machine, so a change that makes the relay more expensive fails everywhere. Frames, bytes and WAL vary by
// less than a hundredth, and the bounds are 1 to 12 % above. The others are about a third above the measured value;
// writes vary more, because a busy machine wakes threads more often.
type counts map[string]float64

const (
	statements  = "SQL statements"
	roundTrips  = "round trips to Postgres"
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
		statements: 0.016, roundTrips: 0.016, walRecords: 1.1, walBytes: 90, updates: 0.01,
		frames: 3.02, sentBytes: countedBytes + 150, writes: 0.2, allocations: 70,
	})
}

// The heads of the keys are found, and each look-up takes several rows of a key.
func TestTheCostOfADrainWithKeysIsBounded(t *testing.T) {
	c := newCounting(t, countedMessages/20)
	c.drains(t, counts{
		statements: 0.024, roundTrips: 0.024, walRecords: 2.2, walBytes: 145, updates: 0.01,
		frames: 3.02, sentBytes: countedBytes + 150, writes: 0.2, allocations: 80,
	})
}

// drains counts all that a relay does from its start until a backlog is published and it has stopped.
func (c *counting) drains(t *testing.T, most counts) {
	t.Helper()
	c.fill(t, 0, countedMessages)
	c.wal.mark(t)
	relay := startCounted(t, c.database, c.broker, c.slot)
	c.awaitEmpty(t)
	all := c.counts(relay.stop(t))
	all.add(c.wal.since(t).withoutLate())
	all.check(t, countedMessages, most)
}

// A relay streams transactions of 500 messages. Each is written after the previous one is done: if the stream fell
// behind, sweeps would publish rows.
func TestTheCostOfAStreamIsBounded(t *testing.T) {
	newCounting(t, 0).streams(t, counts{
		statements: 0.015, roundTrips: 0.015, walRecords: 3.3, walBytes: 580, updates: 0,
		frames: 3.02, sentBytes: countedBytes + 120, writes: 0.6, allocations: 60,
	})
}

// The same, and each message of a transaction has another key. The INSERT writes into one more index.
func TestTheCostOfAStreamWithKeysIsBounded(t *testing.T) {
	newCounting(t, countedBatch).streams(t, counts{
		statements: 0.015, roundTrips: 0.015, walRecords: 4.3, walBytes: 680, updates: 0,
		frames: 3.02, sentBytes: countedBytes + 120, writes: 0.6, allocations: 60,
	})
}

// streams counts what a relay does for a stream, after its first batch. The WAL is that of the INSERTs too.
func (c *counting) streams(t *testing.T, most counts) {
	t.Helper()
	relay := startCounted(t, c.database, c.broker, c.slot)
	c.awaitStreaming(t)
	c.fill(t, 0, countedBatch)
	c.awaitEmpty(t)
	before := c.counts(relay.spent(t))
	c.wal.mark(t)
	for n := countedBatch; n < countedMessages+countedBatch; n += countedBatch {
		c.fill(t, n, n+countedBatch)
		c.awaitEmpty(t)
	}
	spent := c.counts(relay.spent(t)).since(before)
	spent.add(c.wal.since(t))
	spent.check(t, countedMessages, most)
	relay.stop(t)
}

// At a low rate nothing can be batched: each message is written after the previous one is done. Timed work (checks of
// the stream, answers to the server) adds to some rounds, and more on a slow machine, so the cheapest round counts.
func TestTheCostOfASingleMessageIsBounded(t *testing.T) {
	const rounds, messages = 20, 5
	c := newCounting(t, 0)
	relay := startCounted(t, c.database, c.broker, c.slot)
	c.awaitStreaming(t)
	c.fill(t, 0, 1)
	c.awaitEmpty(t)
	c.wal.mark(t)
	var cheapest counts
	for round := range rounds {
		before := c.counts(relay.spent(t))
		for n := range messages {
			c.fill(t, 1+round*messages+n, 2+round*messages+n)
			c.awaitEmpty(t)
		}
		spent := c.counts(relay.spent(t)).since(before)
		for name := range spent {
			if round > 0 {
				spent[name] = min(spent[name], cheapest[name])
			}
		}
		cheapest = spent
	}
	relay.stop(t)
	written := c.wal.since(t)
	written.records /= rounds
	written.bytes /= rounds
	cheapest.add(written)
	cheapest.check(t, messages, counts{
		// A message that comes long after the last proof of the lead asks for another one. A clean end is one update.
		statements: 2, roundTrips: 2, walRecords: 5.2, walBytes: 665, updates: 0.2,
		frames: 3.02, sentBytes: countedBytes + 120, writes: 4.5, allocations: 155,
	})
}

// counting has taps in front of the servers, and addresses that bypass them.
type counting struct {
	conn             *pgx.Conn
	wal              *walReader
	table            outbox.Table
	spec             Spec
	slot             string
	database, broker string // through the taps
	postgres, rabbit *tap
}

func newCounting(t *testing.T, keys int) *counting {
	t.Helper()
	c := &counting{
		table: outbox.Table{Schema: "public", Name: "outbox"}, slot: services.Name(t),
		spec: Spec{Bytes: countedBytes, Keys: keys, Queue: "counted"},
	}
	server := countedPostgres(t)
	database, broker := server.Database(t), services.VHost(t)
	var err error
	if c.conn, err = pgx.Connect(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.conn.Close(context.Background()) })
	if _, _, err := migrations.Up(t.Context(), c.conn, c.table); err != nil {
		t.Fatal(err)
	}
	declare(t, broker, c.spec.Queue)
	c.wal = newWALReader(t, server, database)
	c.database, c.postgres = tapped(t, database, toPostgres)
	c.broker, c.rabbit = tapped(t, broker, toRabbitMQ)
	return c
}

// tapped puts a tap in front of the server of an address.
func tapped(t *testing.T, address string, parser protocol) (string, *tap) {
	t.Helper()
	to, err := url.Parse(address)
	services.Must(t, err)
	p := newTap(t, to.Host, parser)
	to.Host = p.address
	return to.String(), p
}

// declare declares a queue that keeps few messages: nobody consumes it.
func declare(t *testing.T, broker, queue string) {
	t.Helper()
	conn, err := dial(broker, t.Name())
	services.Must(t, err)
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	services.Must(t, err)
	short := map[string]any{"x-max-length": int32(1)}
	if _, err := channel.QueueDeclare(queue, true, false, false, false, short); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := deleteQueue(broker, queue); err != nil {
			t.Log(err)
		}
	})
}

func (c *counting) fill(t *testing.T, from, to int) {
	t.Helper()
	services.Must(t, fill(t.Context(), c.conn, c.table, c.spec, from, to))
}

func (c *counting) awaitEmpty(t *testing.T) {
	t.Helper()
	c.await(t, "NOT EXISTS (SELECT FROM "+c.table.SQL()+")")
}

func (c *counting) awaitStreaming(t *testing.T) {
	t.Helper()
	c.await(t, `EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming'
		AND pid = (SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1))`, c.slot)
}

func (c *counting) await(t *testing.T, condition string, args ...any) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for holds := false; !holds; <-tick.C {
		services.Must(t, c.conn.QueryRow(t.Context(), "SELECT "+condition, args...).Scan(&holds))
	}
}

// counts returns the counts up to now.
func (c *counting) counts(s spent) counts {
	return counts{
		statements: float64(c.postgres.statements.Load()), roundTrips: float64(c.postgres.roundTrips.Load()),
		frames: float64(c.rabbit.frames.Load()), sentBytes: float64(c.rabbit.sent.Load()),
		writes: float64(s.Writes), allocations: float64(s.Allocations),
	}
}

func (c counts) add(w wal) {
	c[walRecords], c[walBytes], c[updates] = float64(w.records), float64(w.bytes), float64(w.updates)
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
