package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/bench/gauge"
	"github.com/cdc-relay/cdc-relay/bench/limit"
	"github.com/cdc-relay/cdc-relay/bench/load"
)

const (
	// writers is how many connections insert at a pace: enough that commits wait for the disk together.
	writers = 16
	// warmUp is how long a steady load runs before it counts.
	warmUp = 2 * time.Second
	// streamPatience is how long a relay may take until it streams.
	streamPatience = time.Minute
)

// pace is a steady load.
type pace struct {
	rate     float64 // messages a second
	duration time.Duration
	spec     load.Spec
	queues   int
}

func (p pace) warm() int { return int(p.rate * warmUp.Seconds()) }

func (p pace) count() int { return max(int(p.rate*p.duration.Seconds()), 1) }

// sender is what brings committed messages to the broker in a steady run.
type sender struct {
	child *child // nil where this process publishes by itself
	// committed is called for each message after its commit.
	committed func(n int, at time.Time) error
	// settled waits until all that has arrived is also settled.
	settled func(ctx context.Context, messages int) error
	// stop ends it.
	stop func() error
}

// steady writes at a pace, and measures what becomes of it from the warm-up on.
func steady(p pace, start func(context.Context, *run, *world) (*sender, error)) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		b := backlog{messages: p.warm() + p.count(), spec: p.spec, queues: p.queues}
		return r.inWorld(ctx, b, func(ctx context.Context, w *world, arrivals *load.Arrivals) error {
			writers, err := load.OpenWriters(ctx, w.database, writers, w.table, w.spec)
			if err != nil {
				return err
			}
			defer writers.Close()
			if err := w.rest(ctx); err != nil {
				return err
			}
			sender, err := start(ctx, r, w)
			if err != nil {
				return err
			}
			return errors.Join(r.keepPace(ctx, w, p, writers, sender, arrivals), sender.stop())
		})
	}
}

func (r *run) keepPace(ctx context.Context, w *world, p pace, writers *load.Writers, s *sender, arrivals *load.Arrivals) error {
	committed := func(n int, at time.Time) error {
		arrivals.Committed(n, at)
		return s.committed(n, at)
	}
	r.progress("warming up", 0, 0)
	if err := writers.Write(ctx, 0, p.warm(), p.rate, committed); err != nil {
		return err
	}
	before, err := w.usage(s.pid(), writers.PIDs())
	if err != nil {
		return err
	}
	began := time.Now()
	stop := r.tell(fmt.Sprintf("writing %.0f/s", p.rate), arrivals)
	err = writers.Write(ctx, p.warm(), p.warm()+p.count(), p.rate, committed)
	stop()
	if err != nil {
		return err
	}
	if err := r.awaitArrivals(ctx, s.child, arrivals); err != nil {
		return err
	}
	r.result.Seconds = time.Since(began).Seconds()
	if err := s.settled(ctx, p.warm()+p.count()); err != nil {
		return err
	}
	after, err := w.usage(s.pid(), writers.PIDs())
	if err != nil {
		return err
	}
	r.result.Messages = p.count()
	r.result.Rate = float64(p.count()) / r.result.Seconds
	r.result.Repeats = arrivals.Repeats()
	r.result.CPU = after.since(before).perMillion(p.count())
	r.result.setLatencies(arrivals.Latencies(p.warm()))
	return r.setMemory(s)
}

func (r *run) setMemory(s *sender) error {
	if s.child == nil {
		return nil
	}
	memory, err := gauge.PeakMemory(s.pid())
	r.result.MemoryMB = megabytes(memory)
	return err
}

// tell tells the progress while something else goes on, until the function that it returns is called.
func (r *run) tell(doing string, arrivals *load.Arrivals) (stop func()) {
	tick := time.NewTicker(time.Second)
	ended := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		for {
			select {
			case <-tick.C:
				r.progress(doing, arrivals.Count(), r.result.Messages)
			case <-ended:
				return
			}
		}
	})
	return func() {
		tick.Stop()
		close(ended)
		telling.Wait()
	}
}

// pid is 0 where this process publishes by itself.
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
func (w *world) startStreaming(ctx context.Context) (*relay, error) {
	relay, err := w.startRelay()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, streamPatience)
	defer cancel()
	if err := relay.awaitMetric(ctx, streamConnected, 1); err != nil {
		return nil, errors.Join(err, relay.kill())
	}
	return relay, nil
}

// byPoller lets a poller look.
func byPoller(_ context.Context, r *run, w *world) (*sender, error) {
	child, err := w.startLimit(limit.Poll, 0, r.settings.Window)
	if err != nil {
		return nil, err
	}
	return &sender{
		child:     child,
		committed: func(int, time.Time) error { return nil },
		settled:   func(ctx context.Context, _ int) error { return w.awaitEmpty(ctx) },
		stop:      child.stop,
	}, nil
}

// awaitEmpty waits until the table has no rows.
func (w *world) awaitEmpty(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stallAfter)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var some bool
		if err := w.control.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+w.table.SQL()+")").Scan(&some); err != nil {
			return fmt.Errorf("wait until the table is empty: %w", err)
		}
		if !some {
			return nil
		}
		<-tick.C
	}
}

// byWriter publishes from the writers themselves, right after the commit: the least latency that there can be.
func byWriter(_ context.Context, r *run, w *world) (*sender, error) {
	conn, err := load.Dial(w.amqp, "bench direct")
	if err != nil {
		return nil, err
	}
	channel, err := limit.Open(conn, r.settings.Window)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	d := &direct{channel: channel, spec: w.spec, filler: w.spec.Filler(), waiting: make(chan *amqp.DeferredConfirmation, r.settings.Window)}
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

// direct publishes what was just committed.
type direct struct {
	spec   load.Spec
	filler string

	mu      sync.Mutex // the channel is for one at a time
	channel *limit.Channel

	waiting  chan *amqp.DeferredConfirmation
	awaiting sync.WaitGroup
	failed   error // written by await alone
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
