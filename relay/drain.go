package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/fallback"
	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/store"
)

// Drain publishes the rows that are in the table now and ready. It returns when none of them is left. While a relay
// leads, Drain waits until that relay has published them. It is an error if a server is down, or if rows remain and
// nothing changes within SendTimeout.
func (r *Relay) Drain(ctx context.Context) error {
	defer r.store.Close()
	defer r.phase.Store(phaseStopped)
	defer event.Flush(r.log)
	if err := r.check(ctx); err != nil {
		return err
	}
	if err := r.leader.checkSplit(ctx); err != nil {
		return err
	}
	last, ok, err := r.store.LastID(ctx)
	if err != nil {
		return err
	}
	if ok {
		r.sweeper.UpTo = last
	}
	r.streamer.Store(nil)
	r.observer.drains = true
	r.sweepsToDrain()
	a := r.start(ctx)
	r.phase.Store(phaseRunning)
	err = r.drain(ctx, a)
	r.phase.Store(phaseStopping)
	a.stop(r)
	what := "drain done"
	if err != nil {
		what = "drain ended early: rows may remain in the table"
	}
	r.log.Info(what, "event", event.DrainDone, "rows", r.observer.written.Load())
	return err
}

const (
	// drainEvery is the poll interval of a drain, unless the send timeout is short. Passes over the keys cost time
	// while rows without a key leave.
	drainEvery = time.Second
	// lookAgain is how soon a drain looks again at rows that nobody settles.
	lookAgain = 100 * time.Millisecond
	// watchTick is how often a drain asks the publisher, the core and the counters whether it has ended.
	watchTick = 5 * time.Millisecond
	// mostTimeouts is how many send timeouts may pass while the publisher is down and ready in turn, and nothing is
	// settled: a message that ends each connection, or each handler, is rejected at the fifth.
	mostTimeouts = 5
)

// sweepsToDrain prepares the sweeper. Each failed statement ends it.
func (r *Relay) sweepsToDrain() {
	r.sweeper.Planner = fallback.NewPlanner(min(drainEvery, r.config.SendTimeout/4))
	r.sweeper.Explain = func(_ context.Context, err error) (error, bool) { return err, true }
}

// rests reports whether this relay does not lead yet, or leaves older rows to the leader before it.
func (r *Relay) rests() bool {
	v := r.core.View()
	return (!v.Leader || v.Rest > 0) && r.leader.waitsFor.Load() == nil
}

// drain watches the others until no row may leave, or until it is stalled.
func (r *Relay) drain(ctx context.Context, a *actors) error {
	ticker := time.NewTicker(watchTick)
	defer ticker.Stop()
	var left store.Waiting
	var settled int64
	changed, look := time.Now(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-a.failed:
			return err
		case <-ticker.C:
		}
		now, v := time.Now(), r.core.View()
		if n := r.observer.written.Load(); n > settled {
			settled, changed, look = n, now, now
		}
		if r.rests() {
			changed = now
		}
		takes, stalled := r.takes.Load(), v.Suspended || r.stalled(changed, now)
		if !stalled && (v.InFlight > 0 || !takes || now.Before(look)) {
			continue
		}
		found, err := r.store.Waiting(ctx, r.sweeper.UpTo)
		v = r.core.View() // a sweep may have taken rows meanwhile
		switch {
		case err != nil:
			return err
		case found.Rows <= r.settler.aside.Load().Rows && (stalled || v.InFlight == 0):
			return r.leftBehind(ctx, a, found, v)
		case takes && !v.Suspended && found != left:
			left, changed = found, now
		case stalled:
			return r.leftBehind(ctx, a, found, v)
		}
		look = time.Now().Add(max(lookAgain, 5*time.Since(now))) // a look may have to pass many rows
	}
}

// stalled reports whether nothing can change any more, or nothing has changed for the send timeout. A publisher that
// comes or goes is a change.
func (r *Relay) stalled(changed, now time.Time) bool {
	state, limit := r.publisherState(), r.config.SendTimeout
	return state.Phase == publish.Closed || now.Sub(latest(changed, state.Since)) > limit ||
		now.Sub(changed) > mostTimeouts*limit
}

// leftBehind says why a drain could not publish these rows; nil: it has published all.
func (r *Relay) leftBehind(ctx context.Context, a *actors, left store.Waiting, v core.View) error {
	state := r.publisherState()
	what := fmt.Sprintf("due rows remain in %s: %d or more, the first has id %d: ",
		r.config.Table, left.Rows, left.First)
	if left.Rows == 0 {
		what = fmt.Sprintf("no due row is in %s: ", r.config.Table)
	}
	aside, last, holder := r.settler.aside.Load().Rows, r.unanswered.lastResult(), r.leader.waitsFor.Load()
	switch {
	case aside > 0:
		return problem.New(checkHint(r.config.Table), "%d rows cannot be changed", aside)
	case v.Suspended:
		return errors.New(cmp.Or(r.settler.trouble.Current(), r.settlerText()))
	case state.Phase == publish.Closed: // Run returns at once, with the reason
		select {
		case err := <-a.failed:
			return err
		case <-a.publisher.done:
		case <-ctx.Done():
		}
		if len(a.failed) > 0 {
			return <-a.failed
		}
	case left.Rows == 0 && state.Phase == publish.Ready && v.InFlight == 0:
		return nil
	}
	switch {
	case last == "" && state.Phase != publish.Ready:
		return problem.New("# repair what the publisher needs, then run drain again",
			"%sthe publisher is %s%s", what, state.Phase, detailOf(state.Detail))
	case last != "" || int64(v.InFlight) > r.settler.waits.Load():
		return problem.New("# the log says what the publisher waits for; then run drain again",
			"%sfor %s no message was confirmed or rejected%s", what, r.config.SendTimeout, detailOf(last))
	case holder != nil:
		return problem.New("# look at the log of that relay, or stop it; then run drain again",
			"%s%s leads and does not publish them", what, holder)
	}
	const findLocker = "SELECT pid, usename, state, query FROM pg_locks JOIN pg_stat_activity USING (pid)" +
		" WHERE mode = 'RowShareLock';  -- end that session, and run drain again"
	return problem.New(findLocker, "%sanother session has locked them", what)
}
