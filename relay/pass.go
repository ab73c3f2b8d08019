package relay

import (
	"context"
	"math"
	"time"

	"github.com/cdc-relay/cdc-relay/fallback"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// pass is where a walk through the table stands.
type pass[C any] struct {
	begun bool
	after C // the last id or key read
	epoch int
	pages int            // read so far
	first store.Snapshot // of its first page
	// naming: that snapshot names all transactions that are under way.
	naming bool
	// from is the first id of the pass, for spilled. last is the newest that was handed out when it began.
	from, last int64
	// walk is the time since the last row was found, longestWalk the most that there was.
	walk, longestWalk time.Duration
}

// firstPage is how many rows the first page of leftovers asks for, whatever their size.
const firstPage = 32

// readLeftovers reads the next page of the pass through the table, or the first of a new one.
func (s *sweeper) readLeftovers(ctx context.Context, sweep *sweep) ([]*outbox.Message, bool, error) {
	p := &s.leftovers
	if !p.begun || p.epoch != sweep.epoch {
		if wait, err := s.leftoversCanWait(ctx); wait || err != nil {
			p.longestWalk = 0 // to ask costs nothing
			return nil, false, err
		}
		*p = pass[int64]{begun: true, epoch: sweep.epoch, after: math.MinInt64, naming: s.core.leftoversBegan()}
		if p.naming {
			if err := s.store.PassAll(ctx); err != nil {
				return nil, false, err
			}
		}
		if err := s.readLast(ctx, p); err != nil {
			return nil, false, err
		}
	}
	found, more, err := s.readPage(ctx, sweep, p)
	if err == nil && !p.begun {
		s.readThrough, s.longestWalk = time.Now(), p.longestWalk
		sweep.leftoversEnded(p.first, p.naming)
	}
	return found, more, err
}

// readSpilled does the same from the first row on that the stream has left.
func (s *sweeper) readSpilled(ctx context.Context, sweep *sweep) ([]*outbox.Message, bool, error) {
	p := &s.spilled
	if !p.begun || p.epoch != sweep.epoch {
		from := s.core.spilledBegan()
		if from == noSpill {
			return nil, false, nil
		}
		*p = pass[int64]{begun: true, epoch: sweep.epoch, after: from - 1, from: from}
		if err := s.readLast(ctx, p); err != nil {
			return nil, false, err
		}
	}
	found, more, err := s.readPage(ctx, sweep, p)
	if err == nil && !p.begun {
		sweep.spilledEnded(p.first)
	}
	return found, more, err
}

// readLast reads how far a pass goes by strides.
func (s *sweeper) readLast(ctx context.Context, p *pass[int64]) error {
	last, ok, err := s.store.LastID(ctx)
	if p.last = last; !ok {
		p.last = -1 // without a sequence nothing is read by strides
	}
	return err
}

// readPage reads the next page of a pass; at the end of it the pass is not begun any more. Where the
// stream has ended, and its connection has not told, whoever holds the slot by now
// publishes what was read.
func (s *sweeper) readPage(ctx context.Context, sweep *sweep, p *pass[int64]) (found []*outbox.Message, more bool, err error) {
	limit := sweep.limit
	limit.Rows = min(limit.Rows, s.pageRows)
	began, upTo := time.Now(), s.stride.from(p.after, p.last)
	page, err := s.store.Leftovers(ctx, s.slot, p.after, upTo, limit)
	took := time.Since(began)
	if ids := passed(p.after, upTo, p.last, page.Messages); ids > 0 && (err == nil || took > longWalk) { // by whoever's timeout
		s.stride = s.stride.next(ids, took)
	}
	if err != nil {
		return nil, false, err
	}
	if page.Holder != sweep.pid {
		s.core.doubt()
		return nil, false, nil
	}
	if p.pages++; p.pages == 1 {
		p.first = page.Snapshot
	}
	p.walk += took
	p.longestWalk = max(p.longestWalk, p.walk)
	if len(page.Messages) == 0 {
		p.after, p.begun = upTo, upTo < greatestID
		return nil, p.begun, nil
	}
	p.walk = 0
	p.after = page.Messages[len(page.Messages)-1].ID
	s.pageRows = min(2*limit.Rows, rowsWithin(limit.Bytes/2, page.Messages), s.page)
	return sweep.leftovers(page), true, nil
}

// passed is how many of the ids between zero and last a statement has passed that began after an id and
// found these rows.
func passed(after, upTo, last int64, found []*outbox.Message) int64 {
	if len(found) > 0 {
		upTo = found[len(found)-1].ID
	}
	return min(upTo, last) - max(after, -1)
}

// leftoversCanWait: a pass walks over all that is dead and that a long transaction keeps from being
// cleaned up. Where nothing but such a transaction asks for it, whether it has ended is cheaper to ask.
func (s *sweeper) leftoversCanWait(ctx context.Context) (bool, error) {
	if !s.core.awaitsTransactions() || time.Since(s.readThrough) > fallback.SafetyAfter(s.longestWalk) {
		return false, nil
	}
	snapshot, err := s.store.Snapshot(ctx)
	return err == nil && !s.core.hasEnded(snapshot), err
}

// rowsWithin is how many rows like these take so many bytes; at least one.
func rowsWithin(bytes int, like []*outbox.Message) int {
	have := 0
	for _, m := range like {
		have += m.Size()
	}
	return max(1, bytes/(have/len(like)))
}

// readHeads reads the next page of keys that have rows.
func (s *sweeper) readHeads(ctx context.Context, sweep *sweep) (more bool, err error) {
	p := &s.keys
	fresh := !p.begun || p.epoch != sweep.epoch
	if fresh {
		if s.core.keyPassBegan() {
			if err := s.store.PassAll(ctx); err != nil {
				return false, err
			}
		}
		*p = pass[string]{begun: true, epoch: sweep.epoch}
	}
	heads, snapshot, err := s.store.KeyHeads(ctx, p.after, s.page+1)
	if err != nil {
		return false, err
	}
	if fresh {
		p.first = snapshot
	}
	sweep.headsFound(heads)
	if len(heads) <= s.page {
		p.begun = false
		sweep.keyPassEnded(p.first)
		return false, nil
	}
	p.after = heads[len(heads)-1].Key
	return true, nil
}

// walked is how long the pass under way, or the last, took at most to find a row.
func (s *sweeper) walked(kind fallback.Sweep) time.Duration {
	switch kind {
	case fallback.Leftovers:
		return s.leftovers.longestWalk
	case fallback.Spilled:
		return s.spilled.longestWalk
	}
	return 0
}

// beginAgain has a pass that failed start anew.
func (s *sweeper) beginAgain(kind fallback.Sweep) {
	switch {
	case kind == fallback.Leftovers && s.leftovers.begun:
		s.core.leftoversFailed(s.leftovers.naming)
		s.leftovers.begun = false
	case kind == fallback.Spilled && s.spilled.begun:
		s.core.spilledFailed(s.spilled.from)
		s.spilled.begun = false
	case kind == fallback.KeyPass:
		s.keys.begun = false
	}
}
