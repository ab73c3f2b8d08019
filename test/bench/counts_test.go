package bench

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/bench/load"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// bounds are the maximum that a relay may do for its messages. They hardly depend on the speed of the machine, so a
// change that makes the relay more expensive fails everywhere. Each is about a third above the measured value; writes
// vary more, because a busy machine wakes threads more often.
type bounds struct {
	statements  float64 // SQL statements for 1,000 messages
	roundTrips  float64 // to Postgres, for 1,000 messages
	writes      float64 // system calls for 1,000 messages
	sentBytes   float64 // to the broker, for each message, without its body
	allocations float64 // for each message
}

const (
	countedMessages = 20_000
	countedBytes    = 300
)

// A relay starts with a backlog.
func TestTheCostOfADrainIsBounded(t *testing.T) {
	c := newCounting(t)
	c.fill(t, 0, countedMessages)
	relay := startCounted(t, c.database, c.broker, c.slot)
	c.awaitEmpty(t)
	c.check(t, relay.stop(t), countedMessages, bounds{statements: 20, roundTrips: 13, writes: 400, sentBytes: 185, allocations: 70})
}

// A relay streams while the rows are written.
func TestTheCostOfAStreamIsBounded(t *testing.T) {
	c := newCounting(t)
	relay := startCounted(t, c.database, c.broker, c.slot)
	c.awaitStreaming(t)
	c.fill(t, 0, countedMessages)
	c.awaitEmpty(t)
	c.check(t, relay.stop(t), countedMessages, bounds{statements: 16, roundTrips: 11, writes: 400, sentBytes: 160, allocations: 60})
}

// Each message is written after the previous one is done, so nothing can be batched.
func TestTheCostOfASingleMessageIsBounded(t *testing.T) {
	const messages = 100
	c := newCounting(t)
	relay := startCounted(t, c.database, c.broker, c.slot)
	c.awaitStreaming(t)
	c.fill(t, 0, 1)
	c.awaitEmpty(t)
	before := c.counts(relay.spent(t))
	for n := range messages {
		c.fill(t, 1+n, 2+n)
		c.awaitEmpty(t)
	}
	after := c.counts(relay.spent(t)).since(before)
	relay.stop(t)
	// Timed work adds a little: checks of the stream, answers to the server. The routing key has the test's name in it.
	after.check(t, messages, bounds{statements: 1600, roundTrips: 1500, writes: 8000, sentBytes: 180, allocations: 140})
}

// counting has taps in front of the servers, and addresses that bypass them.
type counting struct {
	conn             *pgx.Conn
	table            outbox.Table
	spec             load.Spec
	slot             string
	database, broker string // through the taps
	postgres, rabbit *tap
}

func newCounting(t *testing.T) *counting {
	t.Helper()
	c := &counting{
		table: outbox.Table{Schema: "public", Name: "outbox"}, slot: services.Name(t),
		spec: load.Spec{Bytes: countedBytes, Queues: []string{services.Name(t)}},
	}
	database, broker := services.Database(t), services.VHost(t)
	var err error
	if c.conn, err = pgx.Connect(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.conn.Close(context.Background()) })
	if _, _, err := migrations.Up(t.Context(), c.conn, c.table); err != nil {
		t.Fatal(err)
	}
	declare(t, broker, c.spec.Queues[0])
	c.database, c.postgres = tapped(t, database, true)
	c.broker, c.rabbit = tapped(t, broker, false)
	return c
}

// tapped puts a tap in front of the server of an address.
func tapped(t *testing.T, address string, postgres bool) (string, *tap) {
	t.Helper()
	to, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	p := newTap(t, to.Host, postgres)
	to.Host = p.addr()
	return to.String(), p
}

// declare declares a queue that keeps few messages: nobody consumes it.
func declare(t *testing.T, broker, queue string) {
	t.Helper()
	conn, err := load.Dial(broker, t.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDeclare(queue, true, false, false, false, map[string]any{"x-max-length": int32(1)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := load.Delete(broker, []string{queue}); err != nil {
			t.Log(err)
		}
	})
}

func (c *counting) fill(t *testing.T, from, to int) {
	t.Helper()
	if err := load.Fill(t.Context(), c.conn, c.table, c.spec, from, to, 1000, nil); err != nil {
		t.Fatal(err)
	}
}

func (c *counting) awaitEmpty(t *testing.T) {
	t.Helper()
	c.await(t, "NOT EXISTS (SELECT FROM "+c.table.SQL()+")")
}

func (c *counting) awaitStreaming(t *testing.T) {
	t.Helper()
	c.await(t, "EXISTS (SELECT FROM pg_stat_replication WHERE pid = (SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1) "+
		"AND state = 'streaming')", c.slot)
}

func (c *counting) await(t *testing.T, condition string, args ...any) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for holds := false; !holds; <-tick.C {
		if err := c.conn.QueryRow(t.Context(), "SELECT "+condition, args...).Scan(&holds); err != nil {
			t.Fatal(err)
		}
	}
}

// counts are the counts up to a time.
type counts struct {
	statements, roundTrips, sentBytes int64
	spent                             spent
}

func (c *counting) counts(s spent) counts {
	return counts{
		statements: c.postgres.statements.Load(), roundTrips: c.postgres.roundTrips.Load(),
		sentBytes: c.rabbit.sent.Load(), spent: s,
	}
}

func (c counts) since(before counts) counts {
	return counts{
		statements: c.statements - before.statements, roundTrips: c.roundTrips - before.roundTrips,
		sentBytes: c.sentBytes - before.sentBytes,
		spent: spent{
			Allocations:    c.spent.Allocations - before.spent.Allocations,
			AllocatedBytes: c.spent.AllocatedBytes - before.spent.AllocatedBytes,
			Writes:         c.spent.Writes - before.spent.Writes,
		},
	}
}

// check checks a relay's whole life, including its start and end.
func (c *counting) check(t *testing.T, s spent, messages int, most bounds) {
	t.Helper()
	c.counts(s).check(t, messages, most)
}

func (c counts) check(t *testing.T, messages int, most bounds) {
	t.Helper()
	each := func(count int64) float64 { return float64(count) / float64(messages) }
	saw := bounds{
		statements:  1000 * each(c.statements),
		roundTrips:  1000 * each(c.roundTrips),
		writes:      1000 * each(int64(c.spent.Writes)),
		sentBytes:   each(c.sentBytes) - countedBytes,
		allocations: each(int64(c.spent.Allocations)),
	}
	t.Logf("%.1f statements, %.1f round trips, %.0f writes for 1,000 messages; %.0f bytes beside the body, %.1f allocations of %.0f bytes for each",
		saw.statements, saw.roundTrips, saw.writes, saw.sentBytes, saw.allocations, each(int64(c.spent.AllocatedBytes)))
	for _, one := range []struct {
		what      string
		saw, most float64
	}{
		{"SQL statements for 1,000 messages", saw.statements, most.statements},
		{"round trips to Postgres for 1,000 messages", saw.roundTrips, most.roundTrips},
		{"writing system calls for 1,000 messages", saw.writes, most.writes},
		{"bytes to the broker beside each body", saw.sentBytes, most.sentBytes},
		{"allocations for each message", saw.allocations, most.allocations},
	} {
		if one.saw > one.most {
			t.Errorf("%.1f %s, want at most %.1f: fix the change that made it more expensive, or raise the bound and say why", one.saw, one.what, one.most)
		}
	}
}
