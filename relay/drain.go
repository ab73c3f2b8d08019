package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cdc-relay/cdc-relay/fallback"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
)

// Drain publishes the rows that are in the table now and ready, with claims. It returns when none of them is left.
// While a relay streams, Drain takes only due rows, because that relay delivers the others. It is an error if a server
// is down, or if rows remain that no relay or session delivers within SendTimeout.
func (r *Relay) Drain(ctx context.Context) error {
	defer r.store.Close()
	defer r.phase.Store(phaseStopped)
	defer event.Flush(r.log)
	if err := r.check(ctx); err != nil {
		return err
	}
	if err := checkSplit(ctx, r.store, r.config.Names()); err != nil {
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
	r.observer.late.keep()
	a := r.start(ctx)
	r.phase.Store(phaseRunning)
	err = r.drain(ctx, a)
	r.phase.Store(phaseStopping)
	a.stop(r)
	what := "drain done"
	if err != nil {
		what = "drain ended early: rows may be left in the table"
	}
	r.log.Info(what, "event", event.DrainDone, "rows", r.observer.written.Load())
	return err
}

// lookAgain is how soon a drain looks again at rows that others should deliver.
const lookAgain = 100 * time.Millisecond

// drain sweeps until no row is left, or until nothing has changed for the send timeout.
func (r *Relay) drain(ctx context.Context, a *actors) error {
	if err := r.awaitPublisher(ctx, a); err != nil {
		return err
	}
	sweeps := r.sweeper
	sweeps.Polling = true
	var seen remaining
	p := &progress{since: time.Now()}
	for ctx.Err() == nil {
		settled := r.observer.written.Load()
		if err := sweeps.CheckSlot(ctx); err != nil {
			return err
		}
		for _, kind := range []fallback.Sweep{fallback.Due, fallback.Backlog, fallback.Keys} {
			if err := r.drainClass(ctx, a, kind, p); err != nil {
				return err
			}
		}
		if err := r.awaitAnswers(ctx, a); err != nil {
			return err
		}
		if r.observer.written.Load() > settled {
			continue
		}
		if err := r.undeletable(); err != nil {
			return err
		}
		left, err := r.remaining(ctx)
		switch {
		case err != nil || left.rows == 0:
			return err
		case !r.takes.Load():
			if err := r.outage(ctx, a, p); err != nil {
				return err
			}
		case left != seen || sweeps.Role().Rest > 0:
			seen, p.since = left, time.Now()
		case r.stalled(p):
			return r.leftBehind(ctx, left, left.late || sweeps.Claimed() > p.claimed)
		}
		_ = sleep(ctx, lookAgain)
	}
	return ctx.Err()
}

// progress is what a drain had settled and claimed when it settled a row last.
type progress struct {
	settled int64
	claimed int
	since   time.Time
	outages int // since then
}

// stalled tells whether nothing was settled for the send timeout, while the publisher was ready. Rows that are claimed
// and come back are no progress.
func (r *Relay) stalled(p *progress) bool {
	if settled := r.observer.written.Load(); settled > p.settled {
		*p = progress{settled, r.sweeper.Claimed(), time.Now(), 0}
	}
	return time.Since(latest(p.since, r.publisherState().Since)) > r.config.SendTimeout
}

// remaining are rows that may leave and did not, and those that got no answer in time.
type remaining struct {
	rows  int // counts at most mostRemaining of each kind
	first int64
	late  bool // some have no answer
}

const mostRemaining = 1000

// in says how many rows are left in the table.
func (left remaining) in(table outbox.Table) string {
	if left.rows == 0 {
		return fmt.Sprintf("no row that may leave is in %s", table)
	}
	return fmt.Sprintf("%d rows or more that may leave are left in %s, the first has id %d",
		left.rows, table, left.first)
}

func (r *Relay) remaining(ctx context.Context) (left remaining, err error) {
	upTo := r.sweeper.UpTo
	left.rows, left.first = r.observer.late.count()
	left.late = left.rows > 0
	count := func(found []outbox.Candidate, keyed bool) {
		for _, row := range found {
			if row.Ready && row.ID <= upTo && (row.OrderingKey != nil) == keyed {
				left.rows, left.first = left.rows+1, min(row.ID, cmp.Or(left.first, row.ID))
			}
		}
	}
	due, _, err := r.store.FindDue(ctx, nil, nil, mostRemaining)
	if err != nil {
		return left, err
	}
	count(due, false)
	fresh := outbox.Fresh{UpTo: upTo}
	backlog, err := r.store.FindBacklog(ctx, math.MinInt64, upTo, mostRemaining, fresh)
	if err != nil {
		return left, err
	}
	count(backlog, false)
	for after := (*string)(nil); left.rows < mostRemaining; {
		heads, _, err := r.store.FindKeys(ctx, after, mostRemaining, 1, fresh)
		for _, head := range heads {
			count(head, true)
		}
		if err != nil || len(heads) < mostRemaining {
			return left, err
		}
		after = heads[len(heads)-1][0].OrderingKey
	}
	return left, nil
}

// leftBehind says why a drain could not publish rows. Unknown: it has published some, without an outcome.
func (r *Relay) leftBehind(ctx context.Context, left remaining, unknown bool) error {
	what := left.in(r.config.Table) + ": "
	if unknown {
		last := r.unanswered.ongoing()
		if last != "" {
			last = "; the last result is " + last
		}
		return problem.New(
			"# the log says what the publisher waits for; then run drain again",
			"%sfor %s no message was confirmed or rejected%s", what, r.config.SendTimeout, last)
	}
	seen, err := slotNow(ctx, r.store, r.config.Names())
	if err == nil && seen.Relayed(r.config.Table) {
		return problem.New("# look at the log of that relay, or stop it; then run drain again",
			"%s%s owns slot %s and does not publish them", what, seen.Owner(), seen.Name)
	}
	const findLocker = "SELECT pid, usename, state, query FROM pg_locks JOIN pg_stat_activity USING (pid)" +
		" WHERE mode = 'RowShareLock';  -- end that session, and run drain again"
	return problem.New(findLocker, "%sanother session has locked them", what)
}

// drainClass claims page after page while there are more rows, or keys wait for their previous rows.
func (r *Relay) drainClass(ctx context.Context, a *actors, kind fallback.Sweep, p *progress) error {
	sweeps := r.sweeper
	for more := true; more && ctx.Err() == nil; {
		role := sweeps.Role()
		switch {
		case len(a.failed) > 0:
			return <-a.failed
		case r.stalled(p) && sweeps.Claimed() > p.claimed:
			return nil // the same rows come back
		case r.core.View().Suspended:
			return r.undeletable()
		case !r.takes.Load():
			if err := r.outage(ctx, a, p); err != nil {
				return err
			}
			continue
		case kind != fallback.Due && !role.TakesFresh:
			return nil // a relay streams now
		case !role.Ready:
			r.sweeper.Await(ctx, 10*time.Millisecond)
			continue
		}
		var err error
		if more, err = sweeps.Once(ctx, kind); err != nil {
			return err
		}
		if kind == fallback.Keys && !more && (sweeps.Role().KeysWait() || sweeps.Claiming()) {
			r.sweeper.Await(ctx, 10*time.Millisecond)
			more = true
		}
	}
	return ctx.Err()
}

// undeletable is the error of a drain that leaves rows that it can neither delete nor update.
func (r *Relay) undeletable() error {
	if n := r.settler.aside.Load().n; n > 0 {
		return problem.New(asideHint(r.config.Table), "%d rows cannot be changed", n)
	}
	if r.core.View().Suspended {
		return errors.New(r.settler.trouble.Current())
	}
	return nil
}

func (r *Relay) awaitPublisher(ctx context.Context, a *actors) error {
	timer := time.NewTimer(r.config.SendTimeout)
	defer timer.Stop()
	for !r.takes.Load() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-a.failed:
			return err
		case <-timer.C:
			return r.brokerDown(ctx, a)
		case <-r.core.Wake: // signalled when the publisher's state changes
		}
	}
	return nil
}

// mostOutages is how many outages in a row may pass while nothing is settled. A message that ends each connection, or
// each handler of --publisher exec, is rejected at the fifth; each further one like it takes one more.
const mostOutages = 10

// outage waits for a publisher that is not ready.
func (r *Relay) outage(ctx context.Context, a *actors, p *progress) error {
	if _ = r.stalled(p); p.outages == mostOutages {
		return r.brokerDown(ctx, a)
	}
	p.outages++
	return r.awaitPublisher(ctx, a)
}

// brokerDown says why no message leaves: the error that ended the publisher, or its state.
func (r *Relay) brokerDown(ctx context.Context, a *actors) error {
	state := r.publisherState()
	if state.Phase == publish.Closed { // Run returns at once
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
	left, err := r.remaining(ctx)
	if err != nil {
		return err
	}
	if state.Phase == publish.Paused && r.unanswered.ongoing() != "" {
		return r.leftBehind(ctx, left, true)
	}
	return problem.New(
		"# repair what the publisher needs, then run drain again",
		"%s: the publisher is %s%s", left.in(r.config.Table), state.Phase, detailOf(state.Detail))
}

// awaitAnswers waits until nothing is in flight. It is an error if the publisher becomes unavailable.
func (r *Relay) awaitAnswers(ctx context.Context, a *actors) error {
	for ctx.Err() == nil && r.takes.Load() && r.core.View().InFlight > 0 {
		if len(a.failed) > 0 {
			return <-a.failed
		}
		r.sweeper.Await(ctx, 10*time.Millisecond)
	}
	// Confirmed rows may still have to be deleted. Unconfirmed rows return to the table, and the next round fails.
	const writing = 2 * time.Second
	for end := time.Now().Add(writing); ctx.Err() == nil && r.core.View().InFlight > 0; {
		if r.publisherState().Phase == publish.Closed || time.Now().After(end) {
			return r.brokerDown(ctx, a)
		}
		r.sweeper.Await(ctx, 10*time.Millisecond)
	}
	return nil
}
