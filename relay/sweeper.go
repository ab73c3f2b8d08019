package relay

import (
	"context"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/fallback"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// sweeper runs the sweeps that the planner names. One goroutine, in run, does it.
type sweeper struct {
	core    *core
	store   *store.Store
	publish func(*outbox.Message)
	planner *fallback.Planner
	alive   *heartbeat
	trouble *episode

	polling  bool  // never streams: the relay of ModePoll, and Drain
	draining bool  // whether somebody streams by now is asked before unclaimed rows are taken
	upTo     int64 // unclaimed rows beyond this id are left alone
	slot     string
	page     int
	lease    time.Duration
	staleAge time.Duration

	// pageRows is how many rows the next page of leftovers asks for: twice as many as the
	// last, but of great ones so few that not many are sent in vain.
	pageRows int
	// anyDue tells that the last sweep for what is due found something, quiet how long
	// nothing will be due, as it was told instead.
	anyDue bool
	quiet  time.Duration
	// leftovers, spilled and keys are the passes under way, page by page.
	leftovers, spilled pass[int64]
	keys               pass[string]
	stride             stride // of leftovers and spilled
	// readThrough is when a pass over the leftovers has last come to its end, longestWalk how long
	// it took at most to find the next row.
	readThrough time.Time
	longestWalk time.Duration
}

// run sweeps until stop is done. A sweep that began is finished under ctx, so that
// rows it has claimed are not left behind with their lease. A column or table that is
// gone ends it with an error.
func (s *sweeper) run(ctx, stop context.Context) error {
	wait := newBackoff()
	for stop.Err() == nil {
		s.alive.beat()
		s.core.resume(time.Now())
		view := s.core.view(s.page)
		view.Polling = s.polling
		if s.core.takeMovedMany() {
			// Claims take the first rows of a key only; the next may be taken now.
			s.planner.Hurry(fallback.Due)
			s.planner.Hurry(fallback.Unclaimed)
		}
		kind, delay := s.planner.Next(time.Now(), view)
		if kind == fallback.None {
			s.await(stop, delay)
			continue
		}
		began := time.Now()
		more, err := s.once(ctx, kind, view)
		took := max(time.Since(began), s.walked(kind))
		if err != nil {
			took = 0 // an outage says nothing of what a sweep costs
		}
		s.planner.Done(kind, time.Now(), fallback.Outcome{Took: took, More: more, Quiet: s.quiet})
		if err == nil {
			s.trouble.over("sweeping again")
			wait.Reset()
			continue
		}
		s.beginAgain(kind)
		err, gone := s.store.Explain(ctx, err)
		if gone {
			return err
		}
		s.trouble.report("cannot sweep the table; trying again", err)
		s.core.failed(err)
		if sleep(stop, wait.NextBackOff()) != nil {
			break
		}
	}
	return nil
}

// await waits until a sweep may be wanted, or it is time to beat again.
func (s *sweeper) await(stop context.Context, atMost time.Duration) {
	timer := time.NewTimer(min(atMost, heartbeatEvery))
	defer timer.Stop()
	select {
	case <-stop.Done():
	case <-s.core.wake:
	case <-timer.C:
	}
}

// once runs one sweep and hands what it found to the publisher. More tells that
// there is more to read at once.
func (s *sweeper) once(ctx context.Context, kind fallback.Sweep, view fallback.View) (more bool, err error) {
	if kind == fallback.SlotCheck {
		_, err := s.checkSlot(ctx)
		return false, err
	}
	sweep := s.core.beginSweep(s.page)
	defer sweep.end()
	var found []*outbox.Message
	switch kind {
	case fallback.Due:
		found, more, err = s.claimDue(ctx, sweep, view)
	case fallback.Unclaimed:
		found, more, err = s.claimUnclaimed(ctx, sweep)
	case fallback.Follow:
		found, err = s.follow(ctx, sweep, view)
	case fallback.Leftovers:
		found, more, err = s.readLeftovers(ctx, sweep)
	case fallback.Spilled:
		found, more, err = s.readSpilled(ctx, sweep)
	case fallback.KeyRows:
		found, err = s.readKeys(ctx, sweep)
	case fallback.KeyPass:
		more, err = s.readHeads(ctx, sweep)
	}
	s.core.counts.swept(sweep.held)
	for _, m := range found {
		s.publish(m)
	}
	return more, err
}

func (s *sweeper) checkSlot(ctx context.Context) (free bool, err error) {
	holder, err := s.store.SlotHolder(ctx, s.slot)
	free = err == nil && holder == 0
	s.core.slotSeen(free, time.Now())
	return free, err
}

// claimDue: rows with a key are claimed by the holder of the slot alone, since it
// knows what of the key is in flight; or by anyone where nobody streams.
func (s *sweeper) claimDue(ctx context.Context, sweep *sweep, view fallback.View) ([]*outbox.Message, bool, error) {
	s.core.dueBegan()
	s.quiet = 0
	if !s.anyDue {
		// Mostly nothing is due, which is cheaper to ask than to claim it.
		quiet, err := s.store.NextDue(ctx)
		if err != nil || quiet > 0 {
			s.quiet = quiet
			return nil, false, err
		}
	}
	keyed := view.Holder || view.Polling || view.SlotFree
	page, err := s.store.ClaimDue(ctx, sweep.limit, s.lease, keyed)
	s.anyDue = len(page.Messages) > 0
	return sweep.claimed(page, s.lease, false), heads(page.Messages) >= sweep.limit.Rows, err
}

// heads counts the rows that are the first of their key, or have none.
func heads(claimed []*outbox.Message) (n int) {
	seen := make(map[string]bool)
	for _, m := range claimed {
		switch {
		case m.OrderingKey == nil:
			n++
		case !seen[*m.OrderingKey]:
			seen[*m.OrderingKey] = true
			n++
		}
	}
	return n
}

func (s *sweeper) claimUnclaimed(ctx context.Context, sweep *sweep) ([]*outbox.Message, bool, error) {
	which, ok, err := s.unclaimed(ctx)
	if !ok {
		return nil, false, err
	}
	page, err := s.store.ClaimUnclaimed(ctx, sweep.limit, s.lease, which)
	return sweep.claimed(page, s.lease, true), heads(page.Messages) >= sweep.limit.Rows, err
}

// unclaimed says which rows are taken that nobody has claimed. Not ok: somebody
// holds the slot, whose they are, or may take it soon. To look for a few old rows meanwhile would
// be to read millions of young ones.
func (s *sweeper) unclaimed(ctx context.Context) (which store.Unclaimed, ok bool, err error) {
	if s.polling && s.draining {
		s.polling, err = s.checkSlot(ctx)
		return store.Unclaimed{UpTo: s.upTo}, s.polling, err
	}
	if s.polling {
		return store.Unclaimed{UpTo: s.upTo}, true, nil
	}
	// It may be long since this was asked, by a relay that was cut off.
	if free, err := s.checkSlot(ctx); !free {
		return which, false, err
	}
	return store.Unclaimed{Age: s.staleAge, UpTo: s.upTo}, s.core.slotFreeFor(time.Now()) > s.staleAge, nil
}

// follow claims what comes next of keys of which claimed rows were settled: due rows, and for
// who does not hold the slot those that nobody has claimed.
func (s *sweeper) follow(ctx context.Context, sweep *sweep, view fallback.View) ([]*outbox.Message, error) {
	keys := s.core.takeMoved(sweep.limit.Rows)
	page, err := s.store.FollowDue(ctx, keys, sweep.limit, s.lease)
	if err != nil {
		s.core.notFollowed(keys)
		return nil, err
	}
	found := sweep.claimed(page, s.lease, false)
	if view.Holder {
		return found, nil
	}
	rest := sweep.limit
	for _, m := range page.Messages {
		rest.Rows, rest.Bytes = rest.Rows-1, rest.Bytes-m.Size()
		keys = slices.DeleteFunc(keys, func(key string) bool { return key == *m.OrderingKey })
	}
	if len(keys) == 0 {
		return found, nil
	}
	if rest.Rows < 1 || rest.Bytes < 1 {
		s.core.notFollowed(keys)
		return found, nil
	}
	which, ok, err := s.unclaimed(ctx)
	if !ok {
		return found, err
	}
	if page, err = s.store.FollowUnclaimed(ctx, keys, rest, s.lease, which); err != nil {
		s.core.notFollowed(keys)
	}
	return append(found, sweep.claimed(page, s.lease, true)...), err
}

func (s *sweeper) readKeys(ctx context.Context, sweep *sweep) ([]*outbox.Message, error) {
	keys, limit := sweep.takeKeys()
	if len(keys) == 0 {
		return nil, nil
	}
	page, err := s.store.RowsOfKeys(ctx, s.slot, keys, limit)
	if err != nil {
		s.core.notFetched(keys)
		return nil, err
	}
	if page.Holder != sweep.pid {
		s.core.doubt()
		return nil, nil
	}
	return sweep.keysFetched(page, time.Now()), nil
}
