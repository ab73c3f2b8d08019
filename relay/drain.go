package relay

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/fallback"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/replication"
)

// Drain publishes what waits in the table now, with claims, and returns when nothing of that
// is left that may leave. It does not wait for servers that are away: that is an
// error. Where another relay streams, it takes only what is due, since the other
// delivers the rest. What is inserted meanwhile may be streamed by one that has begun to, and is left.
func (r *Relay) Drain(ctx context.Context) error {
	defer r.store.Close()
	defer r.phase.Store(phaseStopped)
	if err := r.check(ctx); err != nil {
		return err
	}
	if err := r.refuseOtherSplit(ctx); err != nil {
		return err
	}
	last, ok, err := r.store.LastID(ctx)
	if err != nil {
		return err
	}
	if ok {
		greatest, err := r.store.GreatestID(ctx)
		if err != nil {
			return err
		}
		r.sweeper.upTo = max(last, greatest)
	}
	holder, err := r.store.SlotHolder(ctx, r.config.Names().Slot)
	if err != nil {
		return err
	}
	if holder != 0 {
		r.log.Info("another relay streams: taking only what is due", "slot", r.config.Names().Slot)
	}
	r.streamer = nil
	a := &actors{failed: make(chan error, 1), stopSweeping: func() {}}
	work := context.WithoutCancel(ctx)
	r.hooks.start()
	a.settler = a.run(work, r.settler.run)
	a.publisher = a.run(work, func(ctx context.Context) error { return r.publisher.Run(ctx, r) })
	r.phase.Store(phaseRunning)
	err = r.drain(ctx, a, holder == 0)
	r.phase.Store(phaseStopping)
	a.stop(r)
	r.log.Info("drained", "rows_settled", r.settler.written.Load())
	return err
}

// refuseOtherSplit: where relays use slots of another number of shards, what this one would take is on
// its way there.
func (r *Relay) refuseOtherSplit(ctx context.Context) error {
	return r.store.Conn(ctx, func(conn *pgx.Conn) error {
		others, err := replication.OtherSlots(ctx, conn.PgConn(), r.config.Names())
		if err == nil && slices.ContainsFunc(others, func(s replication.OtherSlot) bool { return s.Active }) {
			err = replication.OtherSplit(r.config.Names(), others)
		}
		return err
	})
}

// drain sweeps until a round finds nothing and nothing is in flight.
func (r *Relay) drain(ctx context.Context, a *actors, unclaimed bool) error {
	if err := r.awaitPublisher(ctx, a); err != nil {
		return err
	}
	kinds := []fallback.Sweep{fallback.Due}
	if unclaimed {
		kinds = append(kinds, fallback.Unclaimed)
	}
	r.sweeper.polling, r.sweeper.draining = unclaimed, true
	for ctx.Err() == nil {
		published := r.settler.written.Load()
		for _, kind := range kinds {
			if err := r.drainClass(ctx, a, kind); err != nil {
				return err
			}
		}
		if err := r.followUp(ctx, a); err != nil {
			return err
		}
		if r.settler.written.Load() == published {
			return nil // a whole round moved nothing
		}
	}
	return ctx.Err()
}

// drainClass claims page after page while there is more.
func (r *Relay) drainClass(ctx context.Context, a *actors, kind fallback.Sweep) error {
	for more := true; more && ctx.Err() == nil; {
		view := r.core.view(r.sweeper.page)
		view.Polling = r.sweeper.polling
		switch {
		case len(a.failed) > 0:
			return <-a.failed
		case !view.PublisherReady:
			return r.brokerAway(ctx, a)
		case !view.Room:
			r.sweeper.await(ctx, 10*time.Millisecond)
			continue
		}
		var err error
		if more, err = r.sweeper.once(ctx, kind, view); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (r *Relay) awaitPublisher(ctx context.Context, a *actors) error {
	timer := time.NewTimer(r.config.SendTimeout)
	defer timer.Stop()
	for r.publisherState().Phase != publish.Ready {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-a.failed:
			return err
		case <-timer.C:
			return r.brokerAway(ctx, a)
		case <-r.core.wake: // signalled when the publisher's state changes
		}
	}
	return nil
}

// brokerAway says why nothing leaves: what has ended the publisher, or how it stands.
func (r *Relay) brokerAway(ctx context.Context, a *actors) error {
	state := r.publisherState()
	if state.Phase == publish.Closed { // it returns at once
		select {
		case err := <-a.failed:
			return err
		case <-a.publisher.done:
		case <-ctx.Done():
		}
		if len(a.failed) > 0 {
			return <-a.failed
		}
	}
	return problem.New("see that RabbitMQ runs and --amqp-url is right, then run drain again",
		"the broker takes no messages (%s)%s; what waits is still in the table", state.Phase, detailOf(state.Detail))
}

// followUp waits until nothing is in flight, and claims what comes next of the keys meanwhile. Where the
// publisher takes no more before that, it is an error.
func (r *Relay) followUp(ctx context.Context, a *actors) error {
	for ctx.Err() == nil && r.publisherState().Phase == publish.Ready {
		switch {
		case len(a.failed) > 0:
			return <-a.failed
		case r.sweeper.polling && r.core.view(r.sweeper.page).Moved:
			if err := r.drainClass(ctx, a, fallback.Follow); err != nil {
				return err
			}
		case r.core.idle():
			return nil
		default:
			r.sweeper.await(ctx, 10*time.Millisecond)
		}
	}
	// What was confirmed may still be written; what was not comes back, and the next round tells.
	const writing = 2 * time.Second
	for end := time.Now().Add(writing); ctx.Err() == nil && !r.core.idle(); {
		if r.publisherState().Phase == publish.Closed || time.Now().After(end) {
			return r.brokerAway(ctx, a)
		}
		r.sweeper.await(ctx, 10*time.Millisecond)
	}
	return nil
}
