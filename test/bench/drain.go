package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/cdc-relay/cdc-relay/test/bench/gauge"
	"github.com/cdc-relay/cdc-relay/test/bench/limit"
	"github.com/cdc-relay/cdc-relay/test/bench/load"
	"github.com/cdc-relay/cdc-relay/test/soak/subject"
)

// stallAfter is how long nothing may arrive before a run fails.
const stallAfter = time.Minute

// backlog is the initial backlog of a run.
type backlog struct {
	messages int
	spec     load.Spec
	queues   int
	peer     *subject.Subject // nil: cdc-relay's table, slot and publication are created
}

// inFilledWorld creates a world with the backlog and calls do. before is the processor time used until then.
func (r *run) inFilledWorld(
	ctx context.Context, b backlog, do func(ctx context.Context, w *world, arrivals *load.Arrivals, before usage) error,
) error {
	return r.inWorld(ctx, b, func(ctx context.Context, w *world, arrivals *load.Arrivals) error {
		if err := w.fill(ctx, b.messages); err != nil {
			return err
		}
		before, err := w.usage(nil)
		if err != nil {
			return err
		}
		return do(ctx, w, arrivals, before)
	})
}

// drainRelay starts a relay with these flags and lets it publish the backlog.
func drainRelay(b backlog, flags ...string) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		return r.inFilledWorld(ctx, b, func(
			ctx context.Context, w *world, arrivals *load.Arrivals, before usage,
		) error {
			relay, err := w.startRelay(flags...)
			if err != nil {
				return err
			}
			err = r.finish(ctx, w, relay, arrivals, before, nil)
			return errors.Join(err, relay.stop())
		})
	}
}

// finish waits until all messages have arrived and all rows are deleted, and measures without the server's processes in
// except.
func (r *run) finish(
	ctx context.Context, w *world, relay *relayProcess, arrivals *load.Arrivals, before usage, except []int,
) error {
	if err := r.awaitArrivals(ctx, relay.child, arrivals); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stallAfter)
	defer cancel()
	count := r.result.Messages
	if err := relay.awaitMetric(ctx, rowsDeleted, float64(count)); err != nil {
		return err
	}
	r.setTime(arrivals, time.Now())
	after, err := w.usage(except, relay.pid())
	if err != nil {
		return err
	}
	r.result.CPU = after.since(before).perMillion(count)
	memory, err := gauge.PeakMemory(relay.pid())
	if err != nil {
		return err
	}
	r.result.MemoryMB = megabytes(memory)
	return r.measureVacuum(ctx, w)
}

func megabytes(bytes uint64) float64 { return float64(bytes) / (1 << 20) }

// measureVacuum measures the later cost of the run's dead rows.
func (r *run) measureVacuum(ctx context.Context, w *world) error {
	before, err := w.usage(nil)
	if err != nil {
		return err
	}
	if _, err := w.control.Exec(ctx, "VACUUM "+w.table.SQL()); err != nil {
		return fmt.Errorf("vacuum: %w", err)
	}
	after, err := w.usage(nil)
	if err != nil {
		return err
	}
	r.result.Vacuum = after.since(before).perMillion(r.result.Messages).Postgres
	return nil
}

// setTime sets the time from the first arrival to end.
func (r *run) setTime(arrivals *load.Arrivals, end time.Time) {
	took := end.Sub(arrivals.First())
	r.result.Seconds = took.Seconds()
	r.result.Rate = float64(arrivals.Count()) / took.Seconds()
	r.result.Duplicates = arrivals.Duplicates()
}

// limitPublish publishes the same messages through the AMQP library.
func limitPublish(b backlog) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		return r.inWorld(ctx, b, r.runLimit)
	}
}

// runLimit runs a limit that ends by itself.
func (r *run) runLimit(ctx context.Context, w *world, arrivals *load.Arrivals) error {
	before, err := w.usage(nil)
	if err != nil {
		return err
	}
	child, err := w.startLimit(r.result.Messages, r.settings.limitWindow())
	if err != nil {
		return err
	}
	if err := r.awaitArrivals(ctx, child, arrivals); err != nil {
		return errors.Join(err, child.kill())
	}
	r.result.Seconds = time.Since(arrivals.First()).Seconds()
	if err := child.await(ctx); err != nil {
		return err
	}
	r.result.Rate = float64(r.result.Messages) / r.result.Seconds
	after, err := w.usage(nil)
	if err != nil {
		return err
	}
	after.measured, after.kernel = child.cpu()
	r.result.CPU = after.since(before).perMillion(r.result.Messages)
	return nil
}

// startLimit starts the limit in its own process.
func (w *world) startLimit(messages, window int) (*child, error) {
	order, err := json.Marshal(limit.Order{
		AMQPURL: w.amqp, Spec: w.spec, Messages: messages, Window: window,
	})
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(w.site.Self, "limit")
	cmd.Env = environment()
	return startChild("publish", w.logFile("publish"), cmd, bytes.NewReader(order))
}
