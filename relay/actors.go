package relay

import (
	"context"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/core"
)

// actors are the goroutines of a relay, in the order in which they stop.
type actors struct {
	failed chan error // the first error that ended an actor

	owners, retention, sweeper, publisher, settler, leader, reporter actor
	// stopSweeping asks the sweeper to end after the current sweep.
	stopSweeping context.CancelFunc
}

// actor is one goroutine: how to stop it, and whether it has ended.
type actor struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func (a *actors) run(ctx context.Context, f func(context.Context) error) actor {
	ctx, cancel := context.WithCancel(ctx)
	one := actor{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(one.done)
		if err := f(ctx); err != nil {
			select {
			case a.failed <- err:
			default:
			}
		}
	}()
	return one
}

// end stops the actor and waits for it.
func (a actor) end() {
	if a.done != nil {
		a.cancel()
		<-a.done
	}
}

// start starts what Run and Drain have in common: hooks, the look at owners, reporter, settler, leader, publisher,
// sweeper. They outlive ctx; only stop ends them.
func (r *Relay) start(ctx context.Context) *actors {
	ctx = context.WithoutCancel(ctx)
	sweeping, stopSweeping := context.WithCancel(ctx)
	a := &actors{failed: make(chan error, 1), stopSweeping: stopSweeping}
	r.observer.hooks.start()
	a.owners = a.run(ctx, r.watchOwners)
	a.reporter = a.run(ctx, r.reporter.run)
	a.settler = a.run(ctx, r.settler.run)
	r.leader.streamer = r.streamer.Load()
	a.leader = a.run(ctx, r.leader.run)
	a.publisher = a.run(ctx, func(ctx context.Context) error { return r.publisher.Run(ctx, r) })
	a.sweeper = a.run(ctx, func(ctx context.Context) error { return r.sweeper.Run(ctx, sweeping) })
	return a
}

// startForever starts the retention, which a drain does not have. It outlives ctx, too.
func (a *actors) startForever(ctx context.Context, r *Relay) {
	ctx = context.WithoutCancel(ctx)
	if retention := r.newRetention(); retention != nil {
		a.retention = a.run(ctx, retention.run)
	}
}

// settleGrace is how long after the deadline the settler may still release rows that the publisher did not finish.
const settleGrace = 250 * time.Millisecond

// stopGrace is how long after the deadline the relay ends, although something hangs.
const stopGrace = 900 * time.Millisecond

// stop ends the relay within ShutdownTimeout plus a second. What hangs then is left to the end of the process.
func (a *actors) stop(r *Relay) {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		a.stopInOrder(r)
	}()
	within(stopped, r.config.ShutdownTimeout+stopGrace)
}

// within waits until done is closed, for a limited time.
func within(done <-chan struct{}, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// stopInOrder takes no more rows, finishes those in flight, and only then frees the lock. So the next leader finds no
// unfinished rows.
func (a *actors) stopInOrder(r *Relay) {
	deadline := time.Now().Add(r.config.ShutdownTimeout)
	r.core.Stop()
	a.owners.end()
	a.retention.end()
	a.stopSweeping()
	within(a.sweeper.done, time.Until(deadline))
	a.sweeper.end()
	a.awaitIdle(r.core, deadline)
	a.publisher.cancel()
	// A call into a library may not return.
	within(a.publisher.done, time.Until(latest(deadline, time.Now()).Add(settleGrace)))
	a.awaitIdle(r.core, latest(deadline, time.Now()).Add(settleGrace))
	a.settler.end()
	a.reporter.end()
	r.store.Close()
	a.leader.end()
	r.observer.hooks.end()
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// awaitIdle waits until nothing is in flight, or until the settler has ended.
func (a *actors) awaitIdle(c *core.Core, deadline time.Time) {
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for c.View().InFlight > 0 && time.Now().Before(deadline) {
		select {
		case <-a.settler.done:
			return
		case <-ticker.C:
		}
	}
}
