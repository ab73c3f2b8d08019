// Package fault causes the faults of a soak run. It owns the servers, the proxies and the relays of the run, and breaks
// and fixes them.
package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Fault is one kind of fault.
type Fault struct {
	Name string // unique, such as "relay-kill-leader"
	// Duplicates returns how many duplicates the promises allow because of it; nil: none.
	Duplicates func(w *World) int
	// Several: it needs more than one relay.
	Several bool
	// Refuses: the broker rejects messages meanwhile, so attempts and dead letters are expected.
	Refuses bool
	// Unmarked: duplicates because of it may lack x-possible-duplicate; see history.Fault.
	Unmarked bool
	begin    begin
}

// begin causes a fault. detail says what random chose. fix undoes it, also after an error; nil: the fault is over, and
// has taken about the time hold. The error says what failed, which is a defect of the run and not of the relay.
type begin func(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (
	detail string, fix fix, err error)

type fix func(ctx context.Context) error

// Run causes the fault, holds it for about the given time, fixes it, and returns when the servers answer again. It also
// fixes it if ctx ends meanwhile, and tries again if that fails: another fault may still be active.
func (f *Fault) Run(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (detail string, err error) {
	detail, fix, err := f.begin(ctx, w, random, hold)
	if fix == nil {
		return detail, err
	}
	if err == nil {
		wait(ctx, hold)
	}
	ctx, cancel := fixing(ctx)
	defer cancel()
	return detail, errors.Join(err, persist(ctx, fix))
}

// persist retries until it succeeds, for at most hangTimeout.
func persist(ctx context.Context, try fix) error {
	const pause = 500 * time.Millisecond
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		return struct{}{}, try(ctx)
	}, backoff.WithBackOff(backoff.NewConstantBackOff(pause)), backoff.WithMaxElapsedTime(hangTimeout))
	return err
}

// inFlight returns how many duplicates are allowed if n relays are killed or lose their state.
func inFlight(n int) func(*World) int {
	return func(w *World) int { return n * maxInFlight }
}

// ifTakenOver returns how many duplicates are allowed if the slot can move between live relays: the new leader finds
// messages in flight in the table. With one relay, none.
func ifTakenOver(w *World) int {
	if len(w.Relays) == 1 {
		return 0
	}
	return maxInFlight
}

// allInFlight returns how many duplicates are allowed if every relay loses its unconfirmed messages.
func allInFlight(w *World) int { return len(w.Relays) * maxInFlight }

// wait waits for hold, or until ctx ends.
func wait(ctx context.Context, hold time.Duration) {
	timer := time.NewTimer(hold)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// fixTimeout ends a repair that hangs, even if the run's own context has ended.
const fixTimeout = 10 * time.Minute

// hangTimeout ends a single wait that hangs while a fault is made or fixed.
const hangTimeout = 5 * time.Minute

// fixing returns a context that outlives the run's: a fault is fixed in any case. Call it when the fixing begins.
func fixing(ctx context.Context) (context.Context, context.CancelFunc) {
	cause := fmt.Errorf("the fault is not fixed within %s", fixTimeout)
	return context.WithTimeoutCause(context.WithoutCancel(ctx), fixTimeout, cause)
}

// poll calls ask until it returns true or an error, or ctx ends.
func poll(ctx context.Context, ask func() (bool, error)) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if yes, err := ask(); yes || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
