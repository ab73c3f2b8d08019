// Package demo inserts example orders into an outbox as an application would, consumes them from RabbitMQ, and shows
// each arrival.
package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/terminal"
	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	// arrivalTimeout: the demo fails if no message arrives for this long.
	arrivalTimeout = 10 * time.Second
	// grace is how long the demo waits after Ctrl-C for committed messages to arrive.
	grace = 2 * time.Second
	// serverTimeout is how long a connection to RabbitMQ, or a transaction, may take.
	serverTimeout = 10 * time.Second
)

// Config says what the demo does and where.
type Config struct {
	// Conn is used until Run returns; the caller closes it. Database describes it for a person.
	Conn     *pgx.Conn
	Database string
	// Table exists and has the columns of this version.
	Table    outbox.Table
	RabbitMQ amqpdial.Address
	// Rate is in orders a second, more than 0.
	Rate float64
	// Count is how many orders are inserted; 0: until the context is done.
	Count    int
	Terminal terminal.Terminal
}

// Run inserts orders and waits for them to arrive. It fails if none arrives for 10 s. After the end of ctx, it waits
// another 2 s for committed orders, deletes those that have not arrived, and returns nil.
func Run(ctx context.Context, cfg Config) error {
	queue, err := openQueue(cfg.RabbitMQ)
	if err != nil {
		return err
	}
	defer queue.close()

	d := &demo{
		orders:  inserter{conn: cfg.Conn, table: cfg.Table, queue: queue.name},
		Config:  cfg,
		queue:   queue,
		screen:  newScreen(cfg.Terminal),
		pending: make(map[outbox.UUID]sentOrder),
		early:   make(map[outbox.UUID]time.Time),
	}
	d.screen.begin(cfg.Table, cfg.Database, queue.name)
	return d.run(ctx)
}

// demo inserts orders and waits for them to arrive. Only run accesses its fields. Another goroutine inserts, so that a
// slow commit does not delay the arrivals.
type demo struct {
	Config
	orders inserter
	queue  *exclusiveQueue
	screen screen

	// pending are the orders that have not arrived, with the time of their commit.
	pending map[outbox.UUID]sentOrder
	// early are arrivals that came before the inserting goroutine reported the order.
	early   map[outbox.UUID]time.Time
	latency latencies
	counts
}

func (d *demo) run(ctx context.Context) (err error) {
	inserting, stopInserting := context.WithCancel(context.WithoutCancel(ctx))
	inserted := make(chan sentOrder, 1024)
	failed := make(chan error, 1)
	go func() {
		defer close(inserted)
		failed <- d.orders.insert(inserting, d.Rate, d.Count, inserted)
	}()
	defer func() {
		stopInserting()
		for order := range inserted {
			d.pending[order.messageID] = order
		}
		err = d.because(ctx, err)
		d.tidy(ctx)
		d.screen.end(d.summary())
	}()
	if err := d.loop(ctx, stopInserting, inserted); err != nil {
		return err
	}
	stopInserting()
	return <-failed
}

// loop returns when all orders have arrived, when none arrives for arrivalTimeout, or grace after ctx is done.
func (d *demo) loop(ctx context.Context, stopInserting context.CancelFunc, inserted <-chan sentOrder) error {
	interrupted, timeout := ctx.Done(), arrivalTimeout
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
			interrupted, timeout = nil, grace
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

func (d *demo) add(order sentOrder) {
	d.sent++
	if at, ok := d.early[order.messageID]; ok {
		delete(d.early, order.messageID)
		d.show(order, at)
		return
	}
	d.pending[order.messageID] = order
	d.screen.live(d.summary())
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

func (d *demo) show(order sentOrder, at time.Time) {
	took := at.Sub(order.committing)
	d.arrived++
	d.latency.add(took)
	d.screen.arrival(order, took, d.summary())
}

// nothingArrived is the error that committed orders do not arrive.
type nothingArrived struct{ error }

func (d *demo) nothingArrives() error {
	return failure.WithHint(
		nothingArrived{fmt.Errorf("%d orders were committed to %s and nothing arrived for %s",
			len(d.pending), d.orders.table, arrivalTimeout)},
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := d.orders.remove(ctx, d.pending); err != nil {
		d.screen.note(fmt.Sprintf("could not delete %d rows of this demo: %s",
			len(d.pending), show.OneLine(err.Error())))
	}
}

func (d *demo) summary() summary {
	return summary{d.counts, d.latency.percentile(0.50), d.latency.percentile(0.99), d.latency.worst}
}
