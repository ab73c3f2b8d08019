package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	// demoTimeout: the demo fails if no message arrives for this long.
	demoTimeout = 10 * time.Second
	// demoGrace is how long the demo waits after Ctrl-C for committed messages to arrive.
	demoGrace = 2 * time.Second
)

func (p *process) demoCommand() *cli.Command {
	return &cli.Command{
		Name:      "demo",
		Usage:     "insert example orders and show them arrive",
		UsageText: "cdc-relay demo [FLAGS]",
		Description: `Inserts orders into the outbox with plain SQL, consumes them from RabbitMQ, and shows each
arrival. "cdc-relay run" must run with the same servers. The demo creates a queue, which is
deleted at the end, and uses no other queue. In RabbitMQ its user needs the permissions
configure and read for '^amq\.gen-'; the relay's user needs write for amq.default.

The time shown runs from just before COMMIT to the arrival at the consumer, so it includes
the commit. p50 and p99 are those of the last 10,000 arrivals.

EXAMPLES

  cdc-relay demo
  cdc-relay demo --count 20 --rate 50`,
		Flags:  flags("database-url", "amqp-url", "table", "rate", "count", "config"),
		Action: p.demo,
	}
}

func (p *process) demo(c *cli.Context) error {
	cfg, err := p.resolve(c)
	if err != nil {
		return err
	}
	if err := errors.Join(cfg.validate(), cfg.needAMQP()); err != nil {
		return err
	}
	conn, err := connect(c.Context, cfg.relay.DatabaseURL, "demo", pgdial.CatalogFirst)
	if err != nil {
		return err
	}
	defer closeConn(c.Context, conn)
	if err := demoTable(c.Context, conn, cfg.relay.Table); err != nil {
		return err
	}
	queue, err := openDemoQueue(cfg.amqpURL)
	if err != nil {
		return err
	}
	defer queue.close()

	d := &demo{
		orders:  demoOrders{conn: conn, table: cfg.relay.Table, queue: queue.name},
		queue:   queue,
		screen:  p.demoScreen(),
		rate:    cfg.rate,
		count:   cfg.count,
		pending: make(map[outbox.UUID]demoOrder),
	}
	d.screen.begin(cfg.relay.Table, where(conn.Config()), queue.name)
	return d.run(c.Context)
}

func demoTable(ctx context.Context, conn *pgx.Conn, table outbox.Table) error {
	state, err := migrations.Status(ctx, conn, table)
	if err != nil {
		return migrationError(err, conn, table)
	}
	if len(state.Pending) > 0 {
		return failure.WithHint(fmt.Errorf("table %s is missing or not up to date", table), table.Command("setup"))
	}
	return nil
}

// demo inserts orders and waits for them to arrive. Only run accesses its fields. Another goroutine inserts, so that a
// slow commit does not delay the arrivals.
type demo struct {
	orders demoOrders
	queue  *demoQueue
	screen demoScreen
	rate   float64
	count  int

	// pending are the orders that have not arrived, with the time of their commit.
	pending map[outbox.UUID]demoOrder
	// early are arrivals that came before the inserting goroutine reported the order.
	early    map[outbox.UUID]time.Time
	latency  latencies
	sent     int
	arrived  int
	repeated int
}

func (d *demo) run(ctx context.Context) (err error) {
	d.early = make(map[outbox.UUID]time.Time)
	inserting, stopInserting := context.WithCancel(context.WithoutCancel(ctx))
	inserted := make(chan demoOrder, 1024)
	failed := make(chan error, 1)
	go func() {
		defer close(inserted)
		failed <- d.orders.insert(inserting, d.rate, d.count, inserted)
	}()
	defer func() {
		stopInserting()
		for order := range inserted {
			d.pending[order.messageID] = order
		}
		err = d.because(ctx, err)
		d.tidy(ctx)
		d.screen.end(d.numbers())
	}()
	if err := d.loop(ctx, stopInserting, inserted); err != nil {
		return err
	}
	stopInserting()
	return <-failed
}

// loop returns when all orders have arrived, when none arrives for demoTimeout, or demoGrace after ctx is done.
func (d *demo) loop(ctx context.Context, stopInserting context.CancelFunc, inserted <-chan demoOrder) error {
	interrupted, timeout := ctx.Done(), demoTimeout
	stalled := time.NewTimer(timeout)
	defer stalled.Stop()
	for inserted != nil || len(d.pending) > 0 {
		select {
		case order, open := <-inserted:
			if !open {
				inserted = nil
				continue
			}
			if len(d.pending) == 0 {
				stalled.Reset(timeout)
			}
			d.add(order)
		case delivery, open := <-d.queue.deliveries:
			if !open {
				return fmt.Errorf("the connection to RabbitMQ was closed: %w", d.queue.reason())
			}
			stalled.Reset(timeout)
			d.take(delivery, time.Now())
		case <-interrupted:
			stopInserting()
			interrupted, timeout = nil, demoGrace
			stalled.Reset(timeout)
		case <-stalled.C:
			if interrupted == nil {
				return nil
			}
			if len(d.pending) == 0 {
				stalled.Reset(timeout)
				continue
			}
			return d.nothingArrives()
		}
	}
	return nil
}

func (d *demo) add(order demoOrder) {
	d.sent++
	if at, ok := d.early[order.messageID]; ok {
		delete(d.early, order.messageID)
		d.show(order, at)
		return
	}
	d.pending[order.messageID] = order
	d.screen.live(d.numbers())
}

func (d *demo) take(delivery amqp.Delivery, now time.Time) {
	id, err := outbox.ParseUUID([]byte(delivery.MessageId))
	if err != nil {
		return // it is not from the outbox
	}
	if order, ok := d.pending[id]; ok {
		delete(d.pending, id)
		d.show(order, now)
		return
	}
	if again, _ := delivery.Headers[outbox.PossibleDuplicateHeader].(bool); again {
		d.repeated++
		return
	}
	d.early[id] = now
}

func (d *demo) show(order demoOrder, at time.Time) {
	took := at.Sub(order.committing)
	d.arrived++
	d.latency.add(took)
	d.screen.arrival(order, took, d.numbers())
}

// nothingArrived is the error that committed orders do not arrive.
type nothingArrived struct{ error }

func (d *demo) nothingArrives() error {
	return failure.WithHint(
		nothingArrived{fmt.Errorf("%d orders were committed to %s and nothing arrived for %s",
			len(d.pending), d.orders.table, demoTimeout)},
		"cdc-relay run  # with the same --database-url, --amqp-url and --table; "+
			"if it runs, look at its log, and at /readyz",
	)
}

// because adds RabbitMQ's rejection, if there is one. The inserting goroutine must have ended, since it uses the
// connection.
func (d *demo) because(ctx context.Context, err error) error {
	var nothing nothingArrived
	if !errors.As(err, &nothing) {
		return err
	}
	if why := d.orders.rejection(ctx, d.pending); why != "" {
		return failure.WithHint(
			fmt.Errorf("%w: RabbitMQ rejects them: %s", nothing.error, why),
			"cdc-relay check  # with the settings of the relay",
		)
	}
	return err
}

// tidy deletes the rows of orders that did not arrive: their queue ends with this process.
func (d *demo) tidy(ctx context.Context) {
	if len(d.pending) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), demoGrace)
	defer cancel()
	if err := d.orders.remove(ctx, d.pending); err != nil {
		d.screen.note(fmt.Sprintf("could not delete %d rows of this demo: %s", len(d.pending), show.OneLine(err.Error())))
	}
}

func (d *demo) numbers() demoNumbers {
	return demoNumbers{
		sent: d.sent, arrived: d.arrived, repeated: d.repeated,
		p50: d.latency.percentile(0.50), p99: d.latency.percentile(0.99), worst: d.latency.worst,
	}
}
