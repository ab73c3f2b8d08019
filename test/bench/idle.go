package bench

import (
	"context"
	"errors"
	"time"

	"github.com/cdc-relay/cdc-relay/test/bench/gauge"
	"github.com/cdc-relay/cdc-relay/test/bench/load"
)

const (
	// idleSettles is the pause after a relay's start, idleFor the time of the measurement.
	idleSettles = 3 * time.Second
	idleFor     = 20 * time.Second
)

// idle measures a relay that has nothing to do.
func idle(ctx context.Context, r *run) error {
	b := backlog{messages: 1, spec: load.Spec{Bytes: r.settings.Bytes}}
	return r.inWorld(ctx, b, func(ctx context.Context, w *world, _ *load.Arrivals) error {
		relay, err := w.startStreaming(ctx)
		if err != nil {
			return err
		}
		return errors.Join(r.watchIdle(ctx, w, relay), relay.stop())
	})
}

func (r *run) watchIdle(ctx context.Context, w *world, relay *relayProcess) error {
	if err := pause(ctx, idleSettles); err != nil {
		return err
	}
	before, wakesBefore, err := w.fineUsage(relay.pid())
	if err != nil {
		return err
	}
	if err := pause(ctx, idleFor); err != nil {
		return err
	}
	after, wakes, err := w.fineUsage(relay.pid())
	if err != nil {
		return err
	}
	used := after.since(before)
	percent := func(d time.Duration) float64 { return 100 * d.Seconds() / idleFor.Seconds() }
	r.result.Messages, r.result.Seconds = 0, idleFor.Seconds()
	r.result.Wakes = float64(wakes-wakesBefore) / idleFor.Seconds()
	r.result.Idle = &CPU{
		Measured: percent(used.measured),
		Postgres: percent(used.postgres),
		RabbitMQ: percent(used.rabbitmq),
	}
	memory, err := gauge.PeakMemory(relay.pid())
	r.result.MemoryMB = megabytes(memory)
	return err
}

// fineUsage measures the relay with a finer clock, and counts how often it was woken.
func (w *world) fineUsage(pid int) (u usage, wakes uint64, err error) {
	if u, err = w.usage(nil, pid); err != nil {
		return u, 0, err
	}
	little, err := gauge.MeasureLittle(pid)
	u.measured = little.CPU
	return u, little.Wakes, err
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
