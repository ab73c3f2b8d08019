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

// bounds are the maximum that a relay may do for its messages. They hardly depend on the speed of the machine, so a
// change that makes the relay more expensive fails everywhere. Frames, bytes and WAL vary by less than a hundredth, and
// the bounds are 1 to 12 % above. The others are about a third above the measured value; writes vary more, because a
// busy machine wakes threads more often.
type bounds struct {
	statements  float64 // SQL statements for 1,000 messages
	roundTrips  float64 // to Postgres, for 1,000 messages
	walRecords  float64 // for each message
	walBytes    float64 // for each message
	updates     float64 // of rows, for each message
	frames      float64 // of AMQP, for each message
	sentBytes   float64 // to the broker, for each message, without its body
	writes      float64 // system calls for 1,000 messages
	allocations float64 // for each message
}

const (
	countedMessages = 10_000
	countedBytes    = 300
	countedBatch    = 500 // messages of a streamed transaction; less than MaxInFlight
)

// A relay starts with a backlog.
func TestTheCostOfADrainIsBounded(t *testing.T) {
	c := newCounting(t, 0)
	c.drains(t, bounds{
		statements: 16, roundTrips: 16, walRecords: 1.1, walBytes: 90, updates: 0.01,
		frames: 3.02, sentBytes: 150, writes: 200, allocations: 70,
	})
}

// The heads of the keys are found, and each look-up takes several rows of a key.
func TestTheCostOfADrainWithKeysIsBounded(t *testing.T) {
	c := newCounting(t, countedMessages/20)
	c.drains(t, bounds{
		statements: 24, roundTrips: 24, walRecords: 2.2, walBytes: 145, updates: 0.01,
		frames: 3.02, sentBytes: 150, writes: 200, allocations: 80,
	})
}

// drains counts all that a relay does from its start until a backlog is published and it has stopped.
func (c *counting) drains(t *testing.T, most bounds) {
	t.Helper()
	c.fill(t, 0, countedMessages)
	c.wal.mark(t)
	relay := startCounted(t, c.database, c.broker, c.slot)
	c.awaitEmpty(t)
	all := c.counts(relay.stop(t))
	all.wal = c.wal.since(t).withoutLate()
	all.check(t, countedMessages, most)
}

// A relay streams transactions of 500 messages. Each is written after the previous one is done: if the stream fell
// behind, sweeps would publish rows.
func TestTheCostOfAStreamIsBounded(t *testing.T) {
	newCounting(t, 0).streams(t, bounds{
		statements: 15, roundTrips: 15, walRecords: 3.3, walBytes: 580,
		frames: 3.02, sentBytes: 120, writes: 600, allocations: 60,
	})
}

// The same, and each message of a transaction has another key. The INSERT writes into one more index.
func TestTheCostOfAStreamWithKeysIsBounded(t *testing.T) {
	newCounting(t, countedBatch).streams(t, bounds{
		statements: 15, roundTrips: 15, walRecords: 4.3, walBytes: 680,
		frames: 3.02, sentBytes: 120, writes: 600, allocations: 60,
	})
}

// streams counts what a relay does for a stream, after its first batch. The WAL is that of the INSERTs too.
func (c *counting) streams(t *testing.T, most bounds) {
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
	spent.wal = c.wal.since(t)
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
		if round == 0 {
			cheapest = spent
		}
		cheapest = cheapest.least(spent)
	}
	relay.stop(t)
	cheapest.wal = c.wal.since(t)
	cheapest.wal.records /= rounds
	cheapest.wal.bytes /= rounds
	cheapest.check(t, messages, bounds{
		// A message that comes long after the last proof of the lead asks for another one. A clean end is one update.
		statements: 2000, roundTrips: 2000, walRecords: 5.2, walBytes: 665, updates: 0.2,
		frames: 3.02, sentBytes: 120, writes: 4500, allocations: 155,
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

// counts are the counts up to a time.
type counts struct {
	statements, roundTrips, frames, sentBytes int64
	wal                                       wal // since the mark
	spent                                     spent
}

func (c *counting) counts(s spent) counts {
	return counts{
		statements: c.postgres.statements.Load(), roundTrips: c.postgres.roundTrips.Load(),
		frames: c.rabbit.frames.Load(), sentBytes: c.rabbit.sent.Load(), spent: s,
	}
}

// combine returns the counts that f makes of each pair of counts; both have no WAL.
func (c counts) combine(other counts, f func(a, b int64) int64) counts {
	return counts{
		statements: f(c.statements, other.statements), roundTrips: f(c.roundTrips, other.roundTrips),
		frames: f(c.frames, other.frames), sentBytes: f(c.sentBytes, other.sentBytes),
		spent: spent{
			Allocations:    f(c.spent.Allocations, other.spent.Allocations),
			AllocatedBytes: f(c.spent.AllocatedBytes, other.spent.AllocatedBytes),
			Writes:         f(c.spent.Writes, other.spent.Writes),
		},
	}
}

func (c counts) since(before counts) counts {
	return c.combine(before, func(a, b int64) int64 { return a - b })
}

func (c counts) least(other counts) counts {
	return c.combine(other, func(a, b int64) int64 { return min(a, b) })
}

func (c counts) check(t *testing.T, messages int, most bounds) {
	t.Helper()
	each := func(count int64) float64 { return float64(count) / float64(messages) }
	saw := bounds{
		statements:  1000 * each(c.statements),
		roundTrips:  1000 * each(c.roundTrips),
		walRecords:  each(c.wal.records),
		walBytes:    each(c.wal.bytes),
		updates:     each(c.wal.updates),
		frames:      each(c.frames),
		sentBytes:   each(c.sentBytes) - countedBytes,
		writes:      1000 * each(c.spent.Writes),
		allocations: each(c.spent.Allocations),
	}
	t.Logf("%+v, and %.0f allocated bytes for each message", saw, each(c.spent.AllocatedBytes))
	for _, one := range []struct {
		what      string
		saw, most float64
	}{
		{"SQL statements for 1,000 messages", saw.statements, most.statements},
		{"round trips to Postgres for 1,000 messages", saw.roundTrips, most.roundTrips},
		{"WAL records for each message", saw.walRecords, most.walRecords},
		{"bytes of WAL for each message", saw.walBytes, most.walBytes},
		{"updates of rows for each message", saw.updates, most.updates},
		{"AMQP frames for each message", saw.frames, most.frames},
		{"bytes to the broker beside each body", saw.sentBytes, most.sentBytes},
		{"writing system calls for 1,000 messages", saw.writes, most.writes},
		{"allocations for each message", saw.allocations, most.allocations},
	} {
		if one.saw > one.most {
			t.Errorf("%.2f %s, want at most %.2f: fix the change that made it more expensive, or raise the bound"+
				" and say why", one.saw, one.what, one.most)
		}
	}
}
