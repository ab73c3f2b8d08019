package fallback

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// duePass is the state of a pass over the rows that were due when it began. It reads each row once, so rows that cannot
// be read or settled delay no others. Rows that become due meanwhile belong to the next pass, so that it also ends
// while many rows are rejected again and again.
type duePass struct {
	begun bool
	// after is the place of the last row; nil: the pass reads its first page.
	after *outbox.Place
	// until is the database's time of the first page.
	until *time.Time
	// again are rows without a key that are read before.
	again []int64
	// walk is the time since the last row was chosen, longest the longest such time.
	walk, longest time.Duration
}

// dueGround is the time from which Lately starts: when the pass over all due rows before the last one began. So a row
// waits for a pass over all rows only if its transaction took longer than two of them are apart.
type dueGround struct{ from, later *time.Time }

func (s *Sweeper) sweepDue(ctx context.Context, r Role) (o Outcome, err error) {
	p, ground := &s.passes.due, &s.passes.dueGround
	if !p.begun {
		s.Core.DueBegan()
		if !s.passes.anyDue { // usually no row is due, and this query is cheaper
			if o.Quiet, err = s.Table.NextDue(ctx); err != nil || o.Quiet > 0 {
				return o, err
			}
		}
		*p, s.passes.anyDue = duePass{begun: true}, false
	}
	o, err = s.duePage(ctx, r, p)
	switch {
	case p.until == nil:
	case ground.from == nil: // the first pass
		ground.from = p.until
	case !o.More:
		ground.from, ground.later = cmp.Or(ground.later, p.until), p.until
	}
	return o, err
}

// sweepLately is sweepDue for rows that have become due since the last passes.
func (s *Sweeper) sweepLately(ctx context.Context, r Role) (o Outcome, err error) {
	p, from := &s.passes.lately, s.passes.dueGround.from
	if from == nil {
		return o, nil // a new term has begun
	}
	if !p.begun {
		before := &outbox.Place{Due: from.Add(-time.Microsecond), ID: math.MaxInt64}
		*p = duePass{begun: true, after: before, again: s.Core.DueBegan()}
	}
	if rows, _ := s.room(); rows > 0 && len(p.again) > 0 {
		ids := p.again[:min(rows, len(p.again))]
		p.again = p.again[len(ids):]
		return Outcome{More: true}, s.readDue(ctx, r, ids)
	}
	return s.duePage(ctx, r, p)
}

// duePage reads the next page of a pass over due rows.
func (s *Sweeper) duePage(ctx context.Context, r Role, p *duePass) (o Outcome, err error) {
	rows, bytes := s.room()
	if rows == 0 {
		return Outcome{More: true}, nil
	}
	began, limit := s.Core.Clock(), s.some(4*s.Page)
	found, at, err := s.Table.FindDue(ctx, p.after, p.until, limit)
	p.walk += s.searched(began, err)
	if p.longest = max(p.longest, p.walk); err != nil {
		*p = duePass{}
		return o, err
	}
	if p.until == nil && len(found) > 0 {
		p.until = &at
	}
	s.passes.anyDue = s.passes.anyDue || len(found) > 0
	ids, read := s.Core.ChooseRows(found, core.Most{Rows: rows, Bytes: bytes})
	if len(ids) > 0 {
		p.walk = 0
	}
	if p.begun = len(found) >= limit || read < len(found); p.begun {
		last := found[read-1] // at least one was handled: there was room
		p.after = &outbox.Place{Due: *last.Due, ID: last.ID}
	}
	return Outcome{More: p.begun, Took: p.longest}, s.readDue(ctx, r, ids)
}

func (s *Sweeper) readDue(ctx context.Context, r Role, ids []int64) error {
	missed, err := s.readRows(ctx, r, ids)
	if missed {
		s.Core.MissedDue()
	}
	return err
}
