package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/test/bench/gauge"
	"github.com/cdc-relay/cdc-relay/test/bench/load"
)

// fleet has one relay for each shard.
type fleet []*relayProcess

// streamShards is streamPeak with several shards.
func streamShards(b backlog, shards int) func(context.Context, *run) error {
	return atRest(b, func(ctx context.Context, r *run, w *world, arrivals *load.Arrivals) error {
		relays, err := w.startShards(ctx, shards)
		if err == nil {
			err = r.besideWriter(ctx, w, relays[0].child, arrivals, func(ctx context.Context, except []int) error {
				return r.finishShards(ctx, w, relays, arrivals, except)
			})
		}
		return errors.Join(err, relays.stop())
	})
}

// startShards creates the shards and starts a relay for each. After an error it also returns the started relays.
func (w *world) startShards(ctx context.Context, shards int) (fleet, error) {
	if err := w.command(ctx, "teardown", "--yes"); err != nil {
		return nil, err
	}
	if err := w.command(ctx, "setup", "--shards", fmt.Sprint(shards)); err != nil {
		return nil, err
	}
	var relays fleet
	for i := range shards {
		relay, err := w.startStreaming(ctx, "--shard", fmt.Sprintf("%d/%d", i, shards))
		if err != nil {
			return relays, err
		}
		relays = append(relays, relay)
	}
	return relays, nil
}

func (r *run) finishShards(ctx context.Context, w *world, relays fleet, arrivals *load.Arrivals, except []int) error {
	before, err := w.usage(except, relays.pids()...)
	if err != nil {
		return err
	}
	if err := r.awaitArrivals(ctx, nil, arrivals); err != nil {
		return err
	}
	if err := w.awaitEmpty(ctx); err != nil {
		return err
	}
	r.setTime(arrivals, time.Now())
	after, err := w.usage(except, relays.pids()...)
	if err != nil {
		return err
	}
	r.result.CPU = after.since(before).perMillion(r.result.Messages)
	for _, relay := range relays {
		memory, err := gauge.PeakMemory(relay.pid())
		if err != nil {
			return err
		}
		r.result.MemoryMB += megabytes(memory)
	}
	return r.measureVacuum(ctx, w)
}

func (f fleet) pids() (pids []int) {
	for _, relay := range f {
		pids = append(pids, relay.pid())
	}
	return pids
}

func (f fleet) stop() (err error) {
	for _, relay := range f {
		err = errors.Join(err, relay.stop())
	}
	return err
}
