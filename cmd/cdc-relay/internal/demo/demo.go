// Package demo inserts example orders into an outbox as an application would, consumes them from RabbitMQ, and prints
// each arrival.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	// arrivalTimeout: the demo fails if no message arrives for this long.
	arrivalTimeout = 10 * time.Second
	// grace is how long the demo waits after Ctrl-C for committed messages to arrive.
	grace = 2 * time.Second
	// serverTimeout is how long a connection to RabbitMQ, or a transaction, may take.
	serverTimeout = 10 * time.Second
	// latencyWindow is how many of the newest latencies the percentiles cover.
	latencyWindow = 10_000
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
	Count int
	Out   io.Writer
}

// demo inserts orders and waits for them to arrive.
type demo struct {
	Config
	queue string
	first int64 // the id of the first order
	// pending are the orders that have not arrived, by message id.
	pending map[string]order
	// latest is when an order arrived, or when one was committed while none was pending.
	latest        time.Time
	sent, arrived int
	latencies     []time.Duration // the newest ones
	slowest       time.Duration
}

// arrival is the message id of a delivery, and when it arrived.
type arrival struct {
	messageID string
	at        time.Time
}

// Run inserts orders and waits for them to arrive. It fails if none arrives for 10 s. After the end of ctx, it waits
// another 2 s for committed orders, deletes those that have not arrived, and returns nil.
func Run(ctx context.Context, cfg Config) error {
	conn, node, err := connect(cfg.RabbitMQ)
	if err != nil {
		return err
	}
	defer conn.CloseDeadline(time.Now().Add(time.Second)) //nolint:errcheck // the broker notices the end in any case
	queue, deliveries, err := openQueue(conn, node)
	if err != nil {
		return err
	}
	arrivals := make(chan arrival, latencyWindow)
	go func() { // so that a slow INSERT does not add to the latency of others
		defer close(arrivals)
		for delivery := range deliveries {
			arrivals <- arrival{delivery.MessageId, time.Now()}
		}
	}()
	fmt.Fprintf(cfg.Out, "Each order is inserted, committed, published and received here.\n%s\n\n", show.Printable(
		fmt.Sprintf("from %s at %s through queue %s; Ctrl-C ends it", cfg.Table, cfg.Database, queue)))
	d := &demo{Config: cfg, queue: queue, pending: make(map[string]order)}
	err = d.tidy(ctx, d.run(ctx, arrivals))
	fmt.Fprintln(cfg.Out, "\n"+d.summary())
	if err == nil {
		fmt.Fprintf(cfg.Out, "\nNext:\n  %s\n  %s\n",
			problem.Noted(problem.Command(cfg.Table, "stats"), "what waits and what fails"),
			"cdc-relay demo --help  # how to send a message of your own")
	}
	return err
}

// errNothingArrives: committed orders do not arrive.
var errNothingArrives = fmt.Errorf("nothing arrived for %s", arrivalTimeout)

// run returns when all orders have arrived, when none arrives for arrivalTimeout, or grace after ctx is done or an
// INSERT has failed.
func (d *demo) run(ctx context.Context, arrivals <-chan arrival) error {
	orders, seconds := time.NewTicker(time.Duration(float64(time.Second)/d.Rate)), time.NewTicker(time.Second)
	defer orders.Stop()
	defer seconds.Stop()
	due, interrupted := orders.C, ctx.Done()
	var end <-chan time.Time
	failed := d.insert(ctx)
	for {
		if failed != nil || end != nil || d.sent == d.Count {
			due = nil
		}
		if due == nil && len(d.pending) == 0 {
			return failed
		}
		select {
		case <-due:
			if failed = d.insert(ctx); failed != nil {
				end = time.After(grace)
			}
		case a, open := <-arrivals:
			if !open {
				return failure.WithHint(errors.New("RabbitMQ closed the connection or deleted the queue of the demo"),
					"# see RabbitMQ's log")
			}
			d.take(a)
		case <-interrupted:
			interrupted, end = nil, time.After(grace)
		case now := <-seconds.C:
			switch since := now.Sub(d.latest); {
			case len(d.pending) == 0 || since < time.Second:
			case since >= arrivalTimeout && end == nil:
				return errNothingArrives
			default:
				fmt.Fprintf(d.Out, "waiting for the relay: %d sent, %d arrived\n", d.sent, d.arrived)
			}
		case <-end:
			return failed
		}
	}
}

func (d *demo) take(a arrival) {
	o, ok := d.pending[a.messageID]
	if !ok {
		return // a duplicate
	}
	delete(d.pending, a.messageID)
	d.latest = a.at
	took := a.at.Sub(o.committing)
	d.slowest = max(d.slowest, took)
	d.latencies = append(d.latencies[max(0, len(d.latencies)-latencyWindow+1):], took)
	d.arrived++
	fmt.Fprintf(d.Out, "%7s  %-35s arrived after %s\n", fmt.Sprintf("#%d", o.id), o.text, show.Milliseconds(took))
}

// tidy deletes the rows of orders that did not arrive, because their queue ends with this process. It adds RabbitMQ's
// rejection to the error that none arrives.
func (d *demo) tidy(ctx context.Context, err error) error {
	if len(d.pending) == 0 {
		return err
	}
	rejection, failed := d.remove(ctx)
	if failed != nil {
		fmt.Fprintf(d.Out, "could not delete %d rows of this demo: %s\n", len(d.pending), show.OneLine(failed.Error()))
	}
	if !errors.Is(err, errNothingArrives) {
		return err
	}
	err = fmt.Errorf("%d orders were committed to %s and %w", len(d.pending), d.Table, err)
	if rejection != "" {
		return failure.WithHint(fmt.Errorf("%w: RabbitMQ rejects them: %s", err, show.Printable(rejection)),
			"cdc-relay check  # with the settings of the relay")
	}
	return failure.WithHint(err, "cdc-relay run  # with the same --database-url, --amqp-url and --table; "+
		"if it runs, look at its log, and at /readyz")
}

func (d *demo) summary() string {
	text := fmt.Sprintf("%d sent, %d arrived", d.sent, d.arrived)
	if d.arrived == 0 {
		return text
	}
	slices.Sort(d.latencies)
	percentile := func(p int) string { return show.Milliseconds(d.latencies[(len(d.latencies)*p+99)/100-1]) }
	return fmt.Sprintf("%s; commit to arrival: p50 %s, p99 %s, slowest %s",
		text, percentile(50), percentile(99), show.Milliseconds(d.slowest))
}
