package fallback

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// backlogPass is the state of a pass over keyless rows.
type backlogPass struct {
	begun bool
	// from is the id at which it started, next the one at which the next page starts. Last was the newest assigned id
	// then: newer rows belong to the next pass.
	from, next, last int64
	// plain: the last page was full, and none of its rows needed care. left: the last page was rows that the stream has
	// left.
	plain, left bool
	// claimed is Claimed when the pass began.
	claimed int64
	// walk is the time since the last row was found, longest the longest such time.
	walk, longest time.Duration
}

// ground is the newest assigned id when the pass over all keyless rows before the last one began. Newest starts above
// it, so a row waits for a pass over all rows only if its transaction took longer than two of them are apart.
type ground struct {
	known     bool
	id, later int64
}

// passed records a complete pass. Last is the newest assigned id when it began.
func (g ground) passed(last int64) ground {
	if !g.known {
		g.later = last
	}
	return ground{known: last != greatestID, id: g.later, later: last}
}

// sweepBacklog reads the next page of the current pass, or the first page of a new one.
func (s *Sweeper) sweepBacklog(ctx context.Context, r Role) (o Outcome, err error) {
	p := &s.passes.rows
	if rows, _ := s.room(); rows == 0 {
		return Outcome{More: p.begun}, s.look(ctx, &r)
	}
	if !p.begun {
		if begun, err := s.beginBacklog(ctx, &r); !begun {
			return o, err
		}
	}
	if o, err = s.page(ctx, r, p); err == nil && !o.More && p.from == math.MinInt64 {
		s.passes.ground = s.passes.ground.passed(p.last)
	}
	return o, err
}

// sweepNewest is sweepBacklog for the newest ids. It also asks for look-ups of the keys of its first page.
func (s *Sweeper) sweepNewest(ctx context.Context, r Role) (o Outcome, err error) {
	p := &s.passes.newest
	if !p.begun {
		after := s.newestFrom()
		*p = backlogPass{begun: true, from: after + 1, next: after + 1, claimed: s.Claimed()}
		if p.last, err = s.lastID(ctx); err != nil {
			p.begun = false
			return o, err
		}
		if p.last < after { // the sequence has restarted, or is unknown now
			*p, s.passes.ground = backlogPass{}, ground{}
			return o, nil
		}
	}
	r.fresh.Keyed = p.next == p.from
	return s.page(ctx, r, p)
}

// newestFrom returns the id after which Newest starts; greatestID: none is known. A pass under way takes the rows up to
// its last one.
func (s *Sweeper) newestFrom() int64 {
	switch {
	case s.passes.rows.begun:
		return s.passes.rows.last
	case s.passes.ground.known:
		return s.passes.ground.id
	}
	return greatestID
}

// page reads the next page of a pass over keyless rows.
func (s *Sweeper) page(ctx context.Context, r Role, p *backlogPass) (o Outcome, err error) {
	rows, bytes := s.room()
	if rows == 0 {
		return Outcome{More: true}, nil
	}
	most := core.Most{Rows: s.some(rows), Bytes: bytes}
	if p.left = !p.left; p.left {
		if left := s.Core.TakeLeft(most.Rows, p.next); len(left) > 0 {
			chosen, _ := s.Core.ChooseRows(left, false, most)
			return Outcome{More: true, Took: p.longest}, s.claim(ctx, r, chosen)
		}
	}
	upTo, read := s.passes.span.from(p.next, p.last), s.findPage
	if p.plain && upTo < greatestID { // otherwise the stream would leave all new rows in the table meanwhile
		read = s.lockPage
	}
	page, chosen, err := read(ctx, r, p.next, upTo, most)
	certain := err == nil || page.took > longWalk // an error after a long scan is probably a timeout
	if ids := passed(p.next, page.upTo, p.last); ids > 0 && certain {
		s.passes.span = s.passes.span.next(ids, page.took)
	}
	if err != nil {
		s.Core.BacklogFailed(p.from)
		p.begun = false
		return o, err
	}
	p.walk += page.took
	p.longest = max(p.longest, p.walk)
	if page.upTo < upTo {
		p.walk = 0
	}
	p.next, p.plain, p.begun = page.upTo+1, page.plain, page.upTo < p.last
	if chosen != nil {
		err = s.claim(ctx, r, chosen)
	}
	return Outcome{More: p.begun, Full: s.Claimed()-p.claimed >= int64(s.Page), Took: p.longest}, err
}

// pageRead is a page of a pass over keyless rows: it has read them up to an id. Plain: the next page may be one of
// lockPage. Took is the time to find the rows.
type pageRead struct {
	upTo  int64
	plain bool
	took  time.Duration
}

// findPage finds rows, and chooses those to lock. Rows that need care leave by such pages: large ones, and those that
// another session may have locked.
func (s *Sweeper) findPage(
	ctx context.Context, r Role, from, upTo int64, most core.Most,
) (page pageRead, chosen *core.Claim, err error) {
	began := s.Core.Clock()
	found, err := s.Table.FindBacklog(ctx, from, upTo, most.Rows, r.fresh)
	page.upTo, page.took = upTo, s.searched(began, err)
	if err != nil {
		return page, nil, err
	}
	chosen, read := s.Core.ChooseRows(found, r.fresh.Keyed, most)
	if full := len(found) >= most.Rows; full || read < len(found) {
		page.upTo = found[read-1].ID
		page.plain = full && !slices.ContainsFunc(found, func(row outbox.Candidate) bool {
			return row.OrderingKey != nil || row.Traced || row.Size > most.Bytes/most.Rows
		})
	}
	return page, chosen, nil
}

// lockPage finds and locks rows in one statement, which costs Postgres a third less. After a row that needs care,
// findPage continues.
func (s *Sweeper) lockPage(
	ctx context.Context, r Role, from, upTo int64, most core.Most,
) (page pageRead, chosen *core.Claim, err error) {
	began := s.Core.Clock()
	chosen, in := s.Core.ChooseRange(from, upTo, most)
	if chosen == nil {
		return s.findPage(ctx, r, from, upTo, most)
	}
	var skipped *int64
	locked, err := s.lockAndPublish(ctx, r, chosen, func() (tx Transaction, err error) {
		tx, skipped, err = s.LockRange(ctx, *in, r.fresh)
		return tx, err
	})
	page = pageRead{upTo: upTo, plain: skipped == nil, took: s.searched(began, err)}
	switch {
	case skipped != nil:
		page.upTo = *skipped - 1
	case len(locked) >= in.Rows:
		page.upTo = locked[len(locked)-1].ID
	}
	return page, nil, err
}

// beginBacklog starts a pass if one is needed. A leader starts at the lowest id that the stream has left, and first
// asks which transactions are visible.
func (s *Sweeper) beginBacklog(ctx context.Context, r *Role) (bool, error) {
	from := int64(math.MinInt64)
	if r.Leader {
		unseen := r.Unseen
		if err := s.look(ctx, r); err != nil {
			return false, err
		}
		if unseen && !r.Backlog && r.Live && !s.safetyDue() {
			return false, nil
		}
		began, ok := s.Core.BacklogBegan(r.Epoch)
		if !ok {
			return false, nil
		}
		if r.Backlog && r.Live {
			from = began
		}
	}
	s.passes.rows = backlogPass{begun: true, from: from, next: from, claimed: s.Claimed()}
	var err error
	if s.passes.rows.last, err = s.lastID(ctx); err != nil {
		s.Core.BacklogFailed(from)
		s.passes.rows.begun = false
	}
	return err == nil, err
}

// lastID returns the newest assigned id. If that is unknown, it is greatestID, and spans are not used.
func (s *Sweeper) lastID(ctx context.Context) (int64, error) {
	id, ok, err := s.Table.LastID(ctx)
	if !ok {
		id = greatestID
	}
	return id, err
}
