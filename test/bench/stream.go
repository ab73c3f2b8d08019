package bench

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/bench/load"
)

const (
	// peakTransaction is how many rows a transaction of a writer at full speed has.
	peakTransaction = 100
	// aheadAtMost is how far such a writer may be ahead of the consumer: the relay always has work, but the writer does
	// not use the whole machine at first and end halfway.
	aheadAtMost = 10_000
)

// atRest calls do in a world whose server has ended its own work.
func atRest(
	b backlog, do func(ctx context.Context, r *run, w *world, arrivals *load.Arrivals) error,
) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		return r.inWorld(ctx, b, func(ctx context.Context, w *world, arrivals *load.Arrivals) error {
			if err := w.rest(ctx); err != nil {
				return err
			}
			return do(ctx, r, w, arrivals)
		})
	}
}

// streamPeak lets a relay stream rows that are written at full speed.
func streamPeak(b backlog) func(context.Context, *run) error {
	return atRest(b, func(ctx context.Context, r *run, w *world, arrivals *load.Arrivals) error {
		relay, err := w.startStreaming(ctx)
		if err != nil {
			return err
		}
		err = r.besideWriter(ctx, w, relay.child, arrivals, func(ctx context.Context, except []int) error {
			return r.finishStream(ctx, w, relay, arrivals, except)
		})
		return errors.Join(err, relay.stop())
	})
}

// streamTransaction lets a relay stream one transaction.
func streamTransaction(b backlog) func(context.Context, *run) error {
	return atRest(b, func(ctx context.Context, r *run, w *world, arrivals *load.Arrivals) error {
		relay, err := w.startStreaming(ctx)
		if err != nil {
			return err
		}
		return errors.Join(r.finishTransaction(ctx, w, relay, arrivals), relay.stop())
	})
}

// finishTransaction also counts the server's work before the insert ends: it decodes a transaction while it is written.
func (r *run) finishTransaction(ctx context.Context, w *world, relay *relayProcess, arrivals *load.Arrivals) error {
	except := []int{int(w.control.PgConn().PID())}
	before, err := w.usage(except, relay.pid())
	if err != nil {
		return err
	}
	if err := load.FillAtOnce(ctx, w.control, w.table, w.spec, 0, r.result.Messages); err != nil {
		return err
	}
	return r.finish(ctx, w, relay, arrivals, before, except)
}

// limitPublishBesideWrites publishes while the same rows are written as for a streaming relay.
func limitPublishBesideWrites(b backlog) func(context.Context, *run) error {
	return atRest(b, func(ctx context.Context, r *run, w *world, arrivals *load.Arrivals) error {
		child, err := w.startLimit(r.result.Messages, r.settings.limitWindow())
		if err != nil {
			return err
		}
		return r.besideWriter(ctx, w, child, arrivals, func(ctx context.Context, except []int) error {
			return r.finishLimit(ctx, w, child, arrivals, except)
		})
	})
}

// besideWriter calls do while a writer writes all messages. The writer's connection stays open until do has returned.
func (r *run) besideWriter(
	ctx context.Context, w *world, child *child, arrivals *load.Arrivals,
	do func(ctx context.Context, except []int) error,
) error {
	conn, err := pgx.Connect(ctx, w.database)
	if err != nil {
		return errors.Join(err, child.kill())
	}
	defer closeConn(conn)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	written := make(chan error, 1)
	go func() {
		written <- load.Fill(ctx, conn, w.table, w.spec, 0, r.result.Messages, peakTransaction, func(n int) {
			awaitCount(ctx, arrivals, n-aheadAtMost)
		})
	}()
	failed := do(ctx, []int{int(conn.PgConn().PID())})
	if failed != nil {
		cancel()
		failed = errors.Join(failed, child.kill())
	}
	return errors.Join(failed, <-written)
}

// awaitCount waits until at least least messages have arrived.
func awaitCount(ctx context.Context, arrivals *load.Arrivals, least int) {
	if arrivals.Count() >= least {
		return
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for arrivals.Count() < least {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (r *run) finishLimit(ctx context.Context, w *world, child *child, arrivals *load.Arrivals, except []int) error {
	before, err := w.usage(except)
	if err != nil {
		return err
	}
	if err := r.awaitArrivals(ctx, child, arrivals); err != nil {
		return err
	}
	r.setTime(arrivals, time.Now())
	after, err := w.usage(except)
	if err != nil {
		return err
	}
	if err := child.await(ctx); err != nil {
		return err
	}
	after.measured, after.kernel = child.cpu()
	r.result.CPU = after.since(before).perMillion(r.result.Messages)
	return nil
}

func (r *run) finishStream(
	ctx context.Context, w *world, relay *relayProcess, arrivals *load.Arrivals, except []int,
) error {
	before, err := w.usage(except, relay.pid())
	if err != nil {
		return err
	}
	return r.finish(ctx, w, relay, arrivals, before, except)
}
