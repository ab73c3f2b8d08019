package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/bench/gauge"
	"github.com/cdc-relay/cdc-relay/test/bench/load"
)

const (
	// writers is how many connections insert at a rate: enough for commits to share a flush.
	writers = 16
)

// pace is a steady load.
type pace struct {
	rate     float64       // messages a second; infinite: as fast as the writers can
	messages int           // in place of the duration, if the rate is infinite
	warmUp   time.Duration // not counted
	duration time.Duration // after the warm-up
	spec     load.Spec
	byClock  bool // the server vacuums and makes checkpoints by itself, as in production
	held     bool // a transaction stays open all the time
}

func (p pace) warm() int {
	if math.IsInf(p.rate, 1) {
		return 0
	}
	return int(p.rate * p.warmUp.Seconds())
}

func (p pace) count() int {
	if math.IsInf(p.rate, 1) {
		return p.messages
	}
	return max(int(p.rate*p.duration.Seconds()), 1)
}

// steady writes at a rate, and measures from the end of the warm-up.
func steady(p pace, start func(context.Context, *run, *world) (*sender, error)) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		b := backlog{messages: p.warm() + p.count(), spec: p.spec}
		return r.inWorld(ctx, b, func(ctx context.Context, w *world, arrivals *load.Arrivals) (err error) {
			writers, err := load.OpenWriters(ctx, w.database, writers, w.table, w.spec)
			if err != nil {
				return err
			}
			defer writers.Close()
			if err := w.rest(ctx); err != nil {
				return err
			}
			if p.byClock {
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

// hold keeps a transaction with a snapshot and a transaction id open until release is called. The server vacuums by
// itself meanwhile, as in production.
func (w *world) hold(ctx context.Context) (release func(), err error) {
	conn, err := pgx.Connect(ctx, w.database)
	if err != nil {
		return nil, err
	}
	for _, statement := range []string{
		"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT pg_current_xact_id(), count(*) FROM " + w.table.SQL(),
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			closeConn(conn)
			return nil, fmt.Errorf("hold a transaction: %w", err)
		}
	}
	return func() { closeConn(conn) }, nil
}
