package fallback

import (
	"context"
	"math"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay/core"
)

// Table is what a sweep asks of the outbox table. The finds lock nothing.
type Table interface {
	FindDue(ctx context.Context, after time.Time, ties bool, limit int) ([]outbox.Candidate, error)
	FindBacklog(ctx context.Context, after, upTo int64, limit int, fresh outbox.Fresh) ([]outbox.Candidate, error)
	FindKeys(ctx context.Context, after *string, keys, each int, fresh outbox.Fresh) ([]outbox.Run, outbox.Snapshot, error)
	FindRuns(ctx context.Context, keys []string, each int, fresh outbox.Fresh) ([]outbox.Run, outbox.Snapshot, error)
	NextDue(ctx context.Context) (time.Duration, error)
	Snapshot(ctx context.Context, name bool) (outbox.Snapshot, error)
	LastID(ctx context.Context) (id int64, ok bool, err error)
	// Restarts counts how often the server was restarted, has crashed, or was replaced. It is up to date once a statement
	// has succeeded.
	Restarts() int64
}

// Sweeper runs sweeps. Once is called by one goroutine; claims end in their own.
type Sweeper struct {
	Core  *core.Core
	Table Table
	// Lock begins a claim of rows.
	Lock func(ctx context.Context, ids []int64, fresh outbox.Fresh) (Transaction, error)
	// SlotOwner asks who owns the slot.
	SlotOwner func(ctx context.Context) (Owner, error)
	// Publish hands a message to the publisher.
	Publish func(*outbox.Message)
	// Committed is told what a claim has written, and how long that took.
	Committed func(rows []outbox.Settlement, took time.Duration)
	// Orphaned is told what a claim was to write whose transaction has failed.
	Orphaned func(rows []outbox.Settlement)

	Planner *Planner
	// Page is the most rows of a claim.
	Page int
	// StaleAge is the age at which a relay that does not lead takes a row, and for how long the slot must have been free.
	StaleAge time.Duration
	// LateCopies is for how long after it lost the slot a relay may still publish what the stream has brought it, unmarked.
	LateCopies time.Duration
	// SendTimeout is how long a row waits whose confirm has not come when its claim ends.
	SendTimeout time.Duration
	// Polling: the relay never streams. It takes fresh rows while nobody does.
	Polling bool
	// Start has Finish run for an open claim, in a goroutine of its own.
	Start func(claim *core.Claim, tx Transaction)
	// UpTo: rows without a time of their own beyond this id are left alone.
	UpTo int64

	// Shuffle orders keys of which several relays take some.
	Shuffle func(n int, swap func(i, j int))

	claims  claims
	claimed int
	// freeSince is since when no relay has owned the slot; zero: one does. other is the process that owns it then, if any.
	freeSince time.Time
	other     uint32
	// relayed: a relay owned the slot when it was looked at last.
	relayed  bool
	epoch    int
	restarts int64
	// anyDue tells that the last sweep for what is due found something.
	anyDue bool
	due    duePass
	rows   backlogPass
	keys   keysPass
	span   span
	// depth is about how many rows the keys have that were looked up last, at most usualRun.
	depth int
	// lookedUp: the last sweep of keys was one of wanted ones. again is how long to wait before the next.
	lookedUp bool
	again    time.Duration
}

// Owner is who owns the slot.
type Owner struct {
	// PID is of the server process, 0 for none. Relay: it streams to a relay of the table.
	PID   uint32
	Relay bool
	// Unused is for how long nobody has owned the slot, by what the server says.
	Unused time.Duration
}

// role is what this relay may claim now.
type role struct {
	view  core.View
	fresh outbox.Fresh
	// keys: rows with an ordering key, too.
	keys bool
	// owner is the server process that must own the slot when rows are locked; nil: any.
	owner *uint32
	// rest is how long this relay still takes only what is due, like a standby.
	rest time.Duration
}

func (s *Sweeper) role(now time.Time) role {
	r := role{view: s.Core.View(), fresh: outbox.NoFresh()}
	r.rest = r.view.Rest
	if s.Polling && !s.freeSince.IsZero() {
		r.rest = max(s.freeSince.Add(s.LateCopies).Sub(now), 0)
	}
	switch {
	case r.rest > 0:
	case r.view.Leader:
		r.fresh, r.keys, r.owner = outbox.AllFresh(), true, &r.view.PID
	case s.freeSince.IsZero(): // a relay streams
	case s.Polling:
		r.fresh, r.keys, r.owner = outbox.Fresh{UpTo: s.UpTo}, true, &s.other
	case now.Sub(s.freeSince) <= s.StaleAge:
	case s.other != 0: // as long as that process owns the slot, no relay can stream
		r.fresh, r.keys, r.owner = outbox.AllFresh(), true, &s.other
	default:
		r.fresh, r.keys, r.owner = outbox.Fresh{Age: s.StaleAge, UpTo: math.MaxInt64}, true, &s.other
	}
	return r
}

// View is how things stand, for the planner.
func (s *Sweeper) View() View {
	r := s.role(s.now())
	rows, _ := s.Core.Capacity(s.Page)
	v := r.view
	return View{
		Leader: v.Leader, Live: v.Live, Rest: r.rest, TakesFresh: r.keys, Ready: rows > 0 && s.claims.free() > 0,
		Backlog: v.Backlog, Unseen: v.Unseen, Wanted: v.Wanted > 0, Unlisted: v.Unlisted, Due: v.Due,
	}
}

// Next names the sweep to run now, or None and how long to wait.
func (s *Sweeper) Next() (Sweep, time.Duration) {
	s.noticeTerm()
	return s.Planner.Next(s.now(), s.View())
}

// noticeTerm has all passes begin again if a term has begun or ended.
func (s *Sweeper) noticeTerm() {
	epoch := s.Core.View().Epoch
	if epoch == s.epoch {
		return
	}
	s.epoch = epoch
	for sweep := Due; sweep < sweeps; sweep++ {
		s.Planner.Reset(sweep)
	}
	s.due, s.rows, s.keys = duePass{}, backlogPass{}, keysPass{}
}

// Once runs one sweep and tells the planner what came of it. More: there is more to read at once.
func (s *Sweeper) Once(ctx context.Context, kind Sweep) (more bool, err error) {
	s.noticeTerm()
	r := s.role(s.now())
	var o Outcome
	began := s.now()
	switch kind {
	case Due:
		o, err = s.sweepDue(ctx, r)
	case Backlog:
		o, err = s.sweepBacklog(ctx, r)
	case Keys:
		if s.looksUp(r) {
			return s.lookUp(ctx, r)
		}
		o, err = s.passKeys(ctx, r)
	case SlotCheck:
		err = s.CheckSlot(ctx)
	}
	if o.Took == 0 && err == nil { // an outage says nothing of what a sweep costs
		o.Took = s.now().Sub(began)
	}
	s.Planner.Done(kind, s.now(), o)
	return o.More && err == nil, err
}

// CheckSlot asks who owns the slot.
func (s *Sweeper) CheckSlot(ctx context.Context) error {
	owner, err := s.SlotOwner(ctx)
	if err == nil && s.Polling && s.relayed && !owner.Relay {
		err = s.markAll(ctx)
	}
	switch {
	case err != nil || owner.Relay:
		s.freeSince = time.Time{}
	case s.freeSince.IsZero() || owner.PID != s.other: // a relay may have owned it in between
		s.freeSince = s.now()
		if s.Polling && !s.relayed {
			s.freeSince = s.freeSince.Add(-owner.Unused)
		}
	}
	s.other = owner.PID
	s.relayed = owner.Relay || err != nil && s.relayed
	return err
}

// markAll has all rows that are there marked: the relay that owned the slot may have published them.
func (s *Sweeper) markAll(ctx context.Context) error {
	last, ok, err := s.Table.LastID(ctx)
	if !ok {
		last = math.MaxInt64
	}
	if err == nil {
		s.Core.SetBoundary(last)
	}
	return err
}

// duePass is where a pass over the due rows stands. Many may have the same time.
type duePass struct {
	begun bool
	after time.Time
	ties  bool
	limit int
}

// mostTies bounds how many rows of one time are read at once. If nothing can be claimed of so many, the pass goes on
// with the next time.
const mostTies = 1 << 16

func (s *Sweeper) sweepDue(ctx context.Context, r role) (o Outcome, err error) {
	p := &s.due
	if !p.begun {
		s.Core.DueBegan()
		if !s.anyDue { // mostly nothing is due, which is cheaper to ask
			if o.Quiet, err = s.Table.NextDue(ctx); err != nil || o.Quiet > 0 {
				return o, err
			}
		}
		*p, s.anyDue = duePass{begun: true, ties: true, limit: 4 * s.Page}, false
	}
	rows, bytes := s.Core.Capacity(s.Page)
	if rows == 0 {
		return Outcome{More: true}, nil
	}
	found, err := s.Table.FindDue(ctx, p.after, p.ties, p.limit)
	if err != nil {
		*p = duePass{}
		return o, err
	}
	free := s.Core.Free(found)
	keyless, keys, considered := splitDue(free, rows, bytes)
	o.More = len(found) >= p.limit || considered < len(free)
	switch {
	case considered < len(free):
		p.after, p.ties = free[max(considered-1, 0)].Due, true
	case !o.More:
		p.begun = false
	default:
		p.pass(found[len(found)-1].Due)
	}
	s.anyDue = s.anyDue || len(keyless) > 0 || len(keys) > 0
	if r.keys {
		s.Core.WantKeys(keys)
	}
	_, err = s.claim(ctx, r, keyless, rows, bytes)
	return o, err
}

// pass moves on to a time, or reads more of one that fills a page by itself.
func (p *duePass) pass(to time.Time) {
	switch {
	case !p.after.Equal(to):
		p.after, p.ties = to, true
	case p.limit < mostTies:
		p.limit *= 4
	default:
		p.ties = false
	}
}

// splitDue tells rows without a key from the keys of the others, until there is no room for more. Considered is how many
// rows that took.
func splitDue(found []outbox.Candidate, rows, bytes int) (keyless []outbox.Candidate, keys []string, considered int) {
	seen := make(map[string]bool)
	for _, row := range found {
		switch {
		case row.OrderingKey == nil:
			if len(keyless) >= rows || (len(keyless) > 0 && row.Size > bytes) {
				return keyless, keys, considered
			}
			keyless = append(keyless, row)
			bytes -= row.Size
		case !seen[*row.OrderingKey]:
			seen[*row.OrderingKey] = true
			keys = append(keys, *row.OrderingKey)
		}
		considered++
	}
	return keyless, keys, considered
}

// backlogPass is where a pass over the rows without a key stands.
type backlogPass struct {
	begun bool
	// from is the id that it began with; last the newest that was handed out then.
	from, after, last int64
	// walk is the time since the last row was found, longest the most that there was.
	walk, longest time.Duration
}

// sweepBacklog reads the next page of a pass through the table, or the first of a new one.
func (s *Sweeper) sweepBacklog(ctx context.Context, r role) (o Outcome, err error) {
	p := &s.rows
	if rows, _ := s.Core.Capacity(1); rows == 0 {
		return Outcome{More: p.begun}, s.look(ctx, &r)
	}
	if !p.begun {
		if begun, err := s.beginBacklog(ctx, &r); !begun {
			return o, err
		}
	}
	rows, bytes := s.Core.Capacity(s.Page)
	if rows == 0 {
		return Outcome{More: true}, nil
	}
	began, upTo := s.now(), s.span.from(p.after, p.last)
	found, err := s.Table.FindBacklog(ctx, p.after, upTo, rows, r.fresh)
	took := s.now().Sub(began)
	if ids := passed(p.after, upTo, p.last, found); ids > 0 && (err == nil || took > longWalk) { // by anyone's timeout
		s.span = s.span.next(ids, took)
	}
	if err != nil {
		s.Core.BacklogFailed(p.from)
		p.begun = false
		return o, err
	}
	full := len(found) >= rows
	found, cut := within(found, bytes)
	p.walk += took
	p.longest = max(p.longest, p.walk)
	switch {
	case len(found) > 0 && (full || cut):
		p.after, p.walk = found[len(found)-1].ID, 0
	default:
		p.after, p.begun = upTo, upTo < greatestID
	}
	o = Outcome{More: p.begun, Took: p.longest}
	_, err = s.claim(ctx, r, found, rows, bytes)
	return o, err
}

// within cuts rows after so many bytes.
func within(rows []outbox.Candidate, bytes int) (some []outbox.Candidate, cut bool) {
	for i, row := range rows {
		if bytes -= row.Size; bytes < 0 && i > 0 {
			return rows[:i], true
		}
	}
	return rows, false
}

// beginBacklog begins a pass if one is wanted. For a leader, the stream says where from, and a snapshot whether what
// could not be seen before is visible by now.
func (s *Sweeper) beginBacklog(ctx context.Context, r *role) (bool, error) {
	from := int64(math.MinInt64)
	if r.view.Leader {
		unseen := r.view.Unseen
		if err := s.look(ctx, r); err != nil {
			return false, err
		}
		if unseen && !r.view.Backlog && r.view.Live && !s.safetyDue() {
			return false, nil
		}
		began, ok := s.Core.BacklogBegan(r.view.Epoch)
		if !ok {
			return false, nil
		}
		if r.view.Backlog && r.view.Live {
			from = began
		}
	}
	s.rows = backlogPass{begun: true, from: from, after: max(from, math.MinInt64+1) - 1}
	last, ok, err := s.Table.LastID(ctx)
	if s.rows.last = last; !ok {
		s.rows.last = -1 // without a sequence nothing is read by spans
	}
	if err != nil {
		s.Core.BacklogFailed(from)
		s.rows.begun = false
	}
	return err == nil, err
}

// look asks which transactions are visible by now.
func (s *Sweeper) look(ctx context.Context, r *role) error {
	if !r.view.Unseen {
		return nil
	}
	seen, err := s.Table.Snapshot(ctx, r.view.Unnamed != 0)
	if err == nil {
		s.Core.Saw(seen, r.view.Epoch, r.view.Unnamed)
		epoch := r.view.Epoch
		r.view = s.Core.View()
		r.view.Epoch = epoch
	}
	s.Planner.looked = s.now()
	return err
}

// safetyDue: a pass that nothing asks for is due.
func (s *Sweeper) safetyDue() bool {
	p := s.Planner
	return s.now().After(p.next[Backlog].Add(safetyAfter(p.took[Backlog])))
}

func (s *Sweeper) now() time.Time { return s.Core.Clock() }
