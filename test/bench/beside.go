package bench

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/cdc-relay/cdc-relay/test/bench/load"
)

// liveRate is how many live messages are written in a second: too few to delay one another.
const liveRate = 50

// beside starts a relay on a backlog, and writes live messages until the backlog is gone. Each live message of a table
// with ordering keys has a key of its own.
func beside(b backlog, flags ...string) func(context.Context, *run) error {
	live := max(b.messages/500, 10)
	all := b
	all.messages += live
	return func(ctx context.Context, r *run) error {
		return r.inWorld(ctx, all, func(ctx context.Context, w *world, arrivals *load.Arrivals) error {
			if err := w.fill(ctx, b.messages); err != nil {
				return err
			}
			spec := w.spec
			if spec.Keys > 0 {
				spec.Keys = math.MaxInt
			}
			writer, err := load.OpenWriters(ctx, w.database, 1, w.table, spec)
			if err != nil {
				return err
			}
			defer writer.Close()
			relay, err := w.startRelay(flags...)
			if err != nil {
				return err
			}
			awaitCount(ctx, arrivals, 1)
			began := time.Now()
			err = writer.Write(ctx, b.messages, all.messages, liveRate, func(n int, at time.Time) error {
				arrivals.Committed(n, at)
				return nil
			})
			if err == nil {
				err = r.awaitArrivals(ctx, relay.child, arrivals)
			}
			r.result.Messages, r.result.Duplicates = live, arrivals.Duplicates()
			r.result.Seconds = time.Since(began).Seconds()
			r.result.Rate = float64(all.messages) / r.result.Seconds
			r.result.setLatencies(arrivals.Latencies(b.messages))
			return errors.Join(err, relay.stop())
		})
	}
}
