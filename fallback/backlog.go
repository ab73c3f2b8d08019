package fallback

import (
	"context"
	"math"
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
	// left: the last page was rows that the stream has left.
	left bool
	// swept is that of the sweeper when the pass began.
	swept int
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

// sweepNewest reads the rows with the newest ids, and asks for look-ups of their keys.
func (s *Sweeper) sweepNewest(ctx context.Context, r Role) (o Outcome, err error) {
	rows, bytes := s.room()
	if rows == 0 {
		return Outcome{More: true}, nil
	}
	last, err := s.lastID(ctx)
	p := &s.passes
	if from := s.newestFrom(); !p.newestBegun || p.newest < from {
		p.newest, p.newestBegun = from, true
	}
	if err != nil || last < p.newest { // the sequence has restarted, or is unknown now
		p.newestBegun = false
		if err == nil && !p.rows.begun {
			p.ground = ground{}
		}
		return o, err
	}
	began := s.Core.Clock()
	found, err := s.Table.FindNewest(ctx, p.newest+1, min(last, s.UpTo), s.some(rows))
	if o.Took = s.searched(began, err); err != nil {
		return o, err
	}
	ids, read := s.Core.ChooseRows(found, core.Most{Rows: rows, Bytes: bytes})
	if o.More = len(found) >= s.some(rows) || read < len(found); o.More {
		p.newest = found[max(read-1, 0)].ID
	}
	p.newestBegun = o.More
	_, err = s.readRows(ctx, r, ids) // the pass comes to those that it misses
	return o, err
}

// newestFrom returns the id after which Newest starts; greatestID: none is known. A pass under way reads the rows up to
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

// page reads the next page of a pass over keyless rows.
func (s *Sweeper) page(ctx context.Context, r Role, p *backlogPass) (o Outcome, err error) {
	rows, bytes := s.room()
	if rows == 0 {
		return Outcome{More: true}, nil
	}
	rows = s.some(rows)
	if p.left = !p.left; p.left {
		if ids := s.Core.TakeLeft(rows, p.next); len(ids) > 0 {
			_, err = s.readRows(ctx, r, ids) // this pass comes to those that it misses
			return Outcome{More: true, Took: p.longest}, err
		}
	}
	upTo := min(s.passes.span.from(p.next, p.last), s.UpTo)
	in := outbox.Range{From: p.next, UpTo: upTo, Rows: rows, Bytes: bytes, Held: s.Core.Search(p.next, upTo)}
	began := s.Core.Clock()
	read, err := s.Table.ReadRange(ctx, in)
	took := s.searched(began, err)
	s.prove(ctx)
	out, n := s.Core.Swept(core.Read{Messages: read.Messages, Position: read.Position, Epoch: r.Epoch})
	s.apply(out)
	switch {
	case n < len(read.Messages):
		upTo = read.Messages[n].ID - 1
	case err == nil:
		upTo = read.UpTo
	}
	certain := err == nil || took > longWalk // an error after a long scan is probably a timeout
	if ids := passed(p.next, upTo, p.last); ids > 0 && certain {
		s.passes.span = s.passes.span.next(ids, took)
	}
	p.walk += took
	if p.longest = max(p.longest, p.walk); err != nil {
		s.Core.BacklogFailed(p.next)
		*p = backlogPass{}
		return o, err
	}
	if len(read.Messages) > 0 {
		p.walk = 0
	}
	p.next, p.begun = upTo+1, upTo < min(p.last, s.UpTo)
	o = Outcome{More: p.begun, Full: s.swept-p.swept >= s.Page, Took: p.longest}
	missed, err := s.readRows(ctx, r, read.Traced)
	if missed { // a session holds them
		s.Core.BacklogFailed(read.Traced[0])
	}
	return o, err
}

// readRows reads and publishes rows without a key. Missed: a session holds some of them, or there was no room.
func (s *Sweeper) readRows(ctx context.Context, r Role, ids []int64) (missed bool, err error) {
	if len(ids) == 0 {
		return false, nil
	}
	s.Core.Search(greatestID, greatestID)
	rows, position, err := s.Table.ReadRows(ctx, ids, s.UpTo)
	s.prove(ctx)
	out, n := s.Core.Swept(core.Read{Messages: rows, Position: position, Epoch: r.Epoch})
	s.apply(out)
	return err != nil || n < len(ids), err
}

// beginBacklog starts a pass if one is needed. It starts at the lowest id that the stream has left, and first
// asks which transactions are visible.
func (s *Sweeper) beginBacklog(ctx context.Context, r *Role) (bool, error) {
	from := int64(math.MinInt64)
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
	s.passes.rows = backlogPass{begun: true, from: from, next: from, swept: s.swept}
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
