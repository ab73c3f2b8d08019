package bench

import (
	"context"
	"errors"
	"time"

	"github.com/cdc-relay/cdc-relay/test/bench/gauge"
	"github.com/cdc-relay/cdc-relay/test/bench/load"
)

const (
	// writers is how many connections insert at a rate: enough for commits to share a flush.
	writers = 16
)

// pace is a steady load.
type pace struct {
	rate     float64       // messages a second
	warmUp   time.Duration // not counted
	duration time.Duration // after the warm-up
	spec     load.Spec
	queues   int
	slice    time.Duration // length of the parts in Result.Series; 0: none
	held     bool          // a transaction stays open all the time
}

func (p pace) warm() int { return int(p.rate * p.warmUp.Seconds()) }

func (p pace) count() int { return max(int(p.rate*p.duration.Seconds()), 1) }

// steady writes at a rate, and measures from the end of the warm-up.
func steady(p pace, start func(context.Context, *run, *world) (*sender, error)) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		b := backlog{messages: p.warm() + p.count(), spec: p.spec, queues: p.queues}
		return r.inWorld(ctx, b, func(ctx context.Context, w *world, arrivals *load.Arrivals) (err error) {
			writers, err := load.OpenWriters(ctx, w.database, writers, w.table, w.spec)
			if err != nil {
				return err
			}
			defer writers.Close()
			if err := w.rest(ctx); err != nil {
				return err
			}
			if p.slice > 0 { // a long run works as in production
				if err := r.site.byClock(ctx, true); err != nil {
					return err
				}
				defer func() { err = errors.Join(err, r.site.byClock(context.WithoutCancel(ctx), false)) }()
			}
			if p.held {
				release, err := w.hold(ctx)
				if err != nil {
					return err
				}
				defer release()
			}
			sender, err := start(ctx, r, w)
			if err != nil {
				return err
			}
			return errors.Join(r.keepPace(ctx, w, p, writers, sender, arrivals), sender.stop())
		})
	}
}

func (r *run) keepPace(
	ctx context.Context, w *world, p pace, writers *load.Writers, s *sender, arrivals *load.Arrivals,
) error {
	committed := func(n int, at time.Time) error {
		arrivals.Committed(n, at)
		return s.committed(n, at)
	}
	slices := r.startSlices(ctx, w, p, s, writers.PIDs(), arrivals)
	defer slices.stop()
	if err := writers.Write(ctx, 0, p.warm(), p.rate, committed); err != nil {
		return err
	}
	before, err := w.usage(writers.PIDs(), s.pid())
	if err != nil {
		return err
	}
	began := time.Now()
	if err := writers.Write(ctx, p.warm(), p.warm()+p.count(), p.rate, committed); err != nil {
		return err
	}
	if err := slices.stop(); err != nil {
		return err
	}
	if err := r.awaitArrivals(ctx, s.child, arrivals); err != nil {
		return err
	}
	r.result.Seconds = time.Since(began).Seconds()
	if err := s.settled(ctx, p.warm()+p.count()); err != nil {
		return err
	}
	after, err := w.usage(writers.PIDs(), s.pid())
	if err != nil {
		return err
	}
	r.result.Messages = p.count()
	r.result.Rate = float64(p.count()) / r.result.Seconds
	r.result.Duplicates = arrivals.Duplicates()
	r.result.CPU = after.since(before).perMillion(p.count())
	r.result.setLatencies(arrivals.Latencies(p.warm()))
	r.result.Series = slices.series(arrivals)
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
