package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/bench/limit"
	"github.com/cdc-relay/cdc-relay/test/bench/load"
)

// streamTimeout is how long a relay may take until it streams.
const streamTimeout = time.Minute

// sender publishes committed messages in a steady run.
type sender struct {
	child *child // nil: this process publishes
	// committed is called for each message after its commit.
	committed func(n int, at time.Time) error
	// settled waits until all rows of arrived messages are deleted.
	settled func(ctx context.Context, messages int) error
	// stop stops the sender.
	stop func() error
}

// pid is 0 if this process publishes.
func (s *sender) pid() int {
	if s.child == nil {
		return 0
	}
	return s.child.pid()
}

// byRelay lets a relay stream.
func byRelay(ctx context.Context, _ *run, w *world) (*sender, error) {
	relay, err := w.startStreaming(ctx)
	if err != nil {
		return nil, err
	}
	return &sender{
		child:     relay.child,
		committed: func(int, time.Time) error { return nil },
		settled: func(ctx context.Context, messages int) error {
			ctx, cancel := context.WithTimeout(ctx, stallAfter)
			defer cancel()
			return relay.awaitMetric(ctx, rowsDeleted, float64(messages))
		},
		stop: relay.stop,
	}, nil
}

// startStreaming starts a relay and waits until it streams.
func (w *world) startStreaming(ctx context.Context, args ...string) (*relayProcess, error) {
	relay, err := w.startRelay(args...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	if err := relay.awaitMetric(ctx, streamConnected, 1); err != nil {
		return nil, errors.Join(err, relay.kill())
	}
	return relay, nil
}

// awaitEmpty waits until the table has no rows.
func (w *world) awaitEmpty(ctx context.Context) error {
	return w.awaitNone(ctx, "SELECT FROM "+w.table.SQL())
}

// awaitNone waits until the query finds nothing.
func (w *world) awaitNone(ctx context.Context, query string) error {
	ctx, cancel := context.WithTimeout(ctx, stallAfter)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var some bool
		if err := w.control.QueryRow(ctx, "SELECT EXISTS ("+query+")").Scan(&some); err != nil {
			return fmt.Errorf("wait until no message waits: %w", err)
		}
		if !some {
			return nil
		}
		<-tick.C
	}
}

// byWriter publishes in the writers right after the commit: the lowest possible latency.
func byWriter(_ context.Context, r *run, w *world) (*sender, error) {
	conn, err := load.Dial(w.amqp, "bench direct")
	if err != nil {
		return nil, err
	}
	channel, err := limit.Open(conn, r.settings.limitWindow())
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	d := &direct{
		channel: channel,
		spec:    w.spec,
		filler:  w.spec.Filler(),
		waiting: make(chan *amqp.DeferredConfirmation, r.settings.limitWindow()),
	}
	d.awaiting.Go(d.await)
	return &sender{
		committed: d.send,
		settled:   func(context.Context, int) error { return nil },
		stop: func() error {
			close(d.waiting)
			d.awaiting.Wait()
			return errors.Join(d.failed, conn.Close())
		},
	}, nil
}

// direct publishes committed messages.
type direct struct {
	spec   load.Spec
	filler string

	mu      sync.Mutex // the channel must not be used concurrently
	channel *limit.Channel

	waiting  chan *amqp.DeferredConfirmation
	awaiting sync.WaitGroup
	failed   error // only await writes it
}

func (d *direct) send(n int, _ time.Time) error {
	body := d.spec.Body(n, d.filler)
	d.mu.Lock()
	defer d.mu.Unlock()
	confirm, err := d.channel.Send(n, d.spec.Queue(n), body)
	if err != nil {
		return err
	}
	d.waiting <- confirm
	return nil
}

func (d *direct) await() {
	for confirm := range d.waiting {
		if err := d.channel.Await(confirm); err != nil && d.failed == nil {
			d.failed = err
		}
	}
}
