package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/test/bench/load"
)

// run is one run of a case.
type run struct {
	site     *Site
	program  string // the cdc-relay to measure
	settings Settings
	result   *Result
}

// inWorld creates what a run needs, with a consumer, and removes it afterwards.
func (r *run) inWorld(
	ctx context.Context, b backlog, do func(context.Context, *world, *load.Arrivals) error,
) (err error) {
	r.result.Messages = b.messages
	w, err := r.newWorld(ctx, b)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close(ctx)) }()
	arrivals := load.NewArrivals(b.messages)
	consumer, err := load.Consume(ctx, w.amqp, w.spec, arrivals)
	if err != nil {
		return err
	}
	return errors.Join(do(ctx, w, arrivals), consumer.Close())
}

// awaitArrivals waits for the last message, unless nothing arrives for stallAfter. A nil sender is this process.
func (r *run) awaitArrivals(ctx context.Context, sender *child, arrivals *load.Arrivals) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	last := time.Now()
	var ended <-chan struct{}
	if sender != nil {
		ended = sender.done
	}
	for count := 0; ; {
		select {
		case <-arrivals.All():
			return nil
		case <-ended:
			if err := sender.failure(); err != nil {
				return err
			}
			ended = nil // everything is sent
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			if now := arrivals.Count(); now > count {
				count, last = now, time.Now()
			}
			if time.Since(last) > stallAfter {
				err := fmt.Errorf("nothing arrived for %s: %d of %d messages are missing",
					stallAfter, r.result.Messages-count, r.result.Messages)
				if sender != nil {
					err = fmt.Errorf("%w; the log of %s ends:\n%s", err, sender.name, sender.logEnd())
				}
				return err
			}
		}
	}
}
