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
	r.observer.late = newLateRows()
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
	// lookAgain is how soon a drain looks again at rows that others should deliver.
	lookAgain = 100 * time.Millisecond
	// watchTick is how often a drain asks the publisher, the core and the counters whether it has ended.
	watchTick = 5 * time.Millisecond
	// mostOutages is how many outages in a row may pass while nothing is settled. A message that ends each connection,
	// or each handler of --publisher exec, is rejected at the fifth; each further one like it takes one more.
	mostOutages = 10
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

// drain watches the others until no row is left, or until nothing has changed for the send timeout.
func (r *Relay) drain(ctx context.Context, a *actors) error {
	ticker := time.NewTicker(watchTick)
	defer ticker.Stop()
	var seen remaining
	var looked time.Time
	p := &progress{since: time.Now(), state: r.publisherState()}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-a.failed:
			return err
		case <-ticker.C:
		}
		idle, stalled := r.progressed(p)
		undeleted := stalled && r.settler.waits.Load() > 0 // somebody has locked published rows
		takes, suspended := r.takes.Load(), r.core.View().Suspended
		switch {
		case p.state.Phase == publish.Closed, p.outages > mostOutages, !takes && stalled:
			return r.brokerDown(ctx, a)
		case !suspended && (!takes || !idle && !undeleted || time.Since(looked) < lookAgain):
			continue
		}
		undeletable, aside := r.undeletable(), r.settler.aside.Load().Rows
		switch {
		case suspended && undeletable != nil:
			return undeletable
		case suspended:
			continue // the settler is about to say why
		}
		left, err := r.remaining(ctx)
		switch looked = time.Now(); {
		case err != nil:
			return err
		case undeletable != nil && (left.rows <= aside || stalled):
			return undeletable
		case left.rows == 0:
			return nil
		case left != seen || r.rests():
			seen, p.since = left, time.Now()
		case stalled:
			return r.leftBehind(ctx, left, !undeleted && (left.late || r.sweeper.Swept() > p.swept))
		}
	}
}

// progress is what a drain had settled and swept when it settled a row last.
type progress struct {
	settled, swept int64
	since          time.Time     // then, or when an outage of the publisher began or ended
	state          publish.State // of the publisher, at the last look
	outages        int           // since then
}

// progressed records what has changed. Idle: nothing is in flight, and nothing was written since the last call.
// Stalled: nothing was settled for the send timeout. Rows that are swept and come back are no progress.
func (r *Relay) progressed(p *progress) (idle, stalled bool) {
	before, state := p.state, r.publisherState()
	p.state = state
	if state.Since != before.Since && before.Phase == publish.Ready && state.Phase != publish.Paused {
		p.outages++
		p.since = time.Now()
	}
	if state.Phase == publish.Ready && state.Since.After(p.since) {
		p.since = state.Since
	}
	idle = r.core.View().InFlight == 0
	if settled := r.observer.written.Load(); settled > p.settled {
		*p = progress{settled: settled, swept: r.sweeper.Swept(), since: time.Now(), state: state}
		idle = false
	}
	return idle, time.Since(p.since) > r.config.SendTimeout
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
		return fmt.Sprintf("no due row is in %s", table)
	}
	return fmt.Sprintf("due rows remain in %s: %d or more, the first has id %d", table, left.rows, left.first)
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
	backlog, err := r.store.ReadRange(ctx, outbox.Range{
		From: math.MinInt64, UpTo: upTo, Rows: mostRemaining, Bytes: mostRemaining << 10,
	})
	if err != nil {
		return left, err
	}
	for _, m := range backlog.Messages {
		left.rows, left.first = left.rows+1, min(m.ID, cmp.Or(left.first, m.ID))
	}
	for _, id := range backlog.Traced {
		left.rows, left.first = left.rows+1, min(id, cmp.Or(left.first, id))
	}
	for after := (*string)(nil); left.rows < mostRemaining; {
		heads, _, err := r.store.FindKeys(ctx, after, mostRemaining, 1, upTo)
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
	if holder := r.leader.waitsFor.Load(); holder != nil {
		return problem.New("# look at the log of that relay, or stop it; then run drain again",
			"%s%s leads and does not publish them", what, holder)
	}
	const findLocker = "SELECT pid, usename, state, query FROM pg_locks JOIN pg_stat_activity USING (pid)" +
		" WHERE mode = 'RowShareLock';  -- end that session, and run drain again"
	return problem.New(findLocker, "%sanother session has locked them", what)
}

// undeletable is the error of a drain that leaves rows that it can neither delete nor update.
func (r *Relay) undeletable() error {
	if n := r.settler.aside.Load().Rows; n > 0 {
		return problem.New(checkHint(r.config.Table), "%d rows cannot be changed", n)
	}
	if trouble := r.settler.trouble.Current(); trouble != "" && r.core.View().Suspended {
		return errors.New(trouble)
	}
	return nil
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
