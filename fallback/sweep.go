package fallback

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/outagelog"
	"github.com/cdc-relay/cdc-relay/internal/pgsnapshot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Table is what sweeps need from the outbox table. No method locks rows.
type Table interface {
	FindDue(
		ctx context.Context, after *outbox.Place, until *time.Time, limit int,
	) ([]outbox.Candidate, time.Time, error)
	FindBacklog(ctx context.Context, after, upTo int64, limit int, fresh outbox.Fresh) ([]outbox.Candidate, error)
	FindKeys(
		ctx context.Context, after *string, keys, each int, fresh outbox.Fresh,
	) ([]outbox.Run, pgsnapshot.Snapshot, error)
	FindRuns(
		ctx context.Context, keys []string, each int, fresh outbox.Fresh,
	) ([]outbox.Run, pgsnapshot.Snapshot, error)
	NextDue(ctx context.Context) (time.Duration, error)
	Snapshot(ctx context.Context, name bool) (pgsnapshot.Snapshot, error)
	LastID(ctx context.Context) (id int64, ok bool, err error)
	// Restarts counts the restarts, crashes and replacements of the server. It is up to date after each successful
	// statement.
	Restarts() int64
}

// Sweeper runs sweeps. Only one goroutine may call Run or Once; claims end in others.
type Sweeper struct {
	Core  *core.Core
	Table Table
	// Lock starts a claim of rows, or of one large row.
	Lock func(ctx context.Context, ids []int64, large bool, fresh outbox.Fresh) (Transaction, error)
	// LockRange starts a claim of the first rows of a range that need no care, and returns the first row that it has
	// skipped; nil: none. Without a transaction, the server cannot send one of the rows.
	LockRange func(
		ctx context.Context, in outbox.Range, fresh outbox.Fresh,
	) (tx Transaction, skipped *int64, err error)
	// SlotOwner returns who owns the slot.
	SlotOwner func(ctx context.Context) (Owner, error)
	// Apply does what the core has decided.
	Apply func(core.Out)
	// Committed receives the rows that a claim has written, and the time of the commit.
	Committed func(rows []outbox.Settlement, took time.Duration)
	// Failed receives the error of a claim that was not read or written.
	Failed func(error)

	// start replaces the goroutine of a claim in tests.
	start func(*openClaim)
	// Explain says what an error of a statement means, and whether the table or a column is gone. Retry is the wait
	// after an error.
	Explain func(context.Context, error) (err error, gone bool)
	Retry   *backoff.ExponentialBackOff
	Log     *slog.Logger
	// Trouble has the errors of Run, which calls Beat at least every BeatEvery.
	Trouble   *outagelog.Log
	Beat      func()
	BeatEvery time.Duration

	// Shuffle randomises the order of keys that several relays compete for.
	Shuffle func(n int, swap func(i, j int))
	Planner *Planner
	Settings

	claims  claims
	slot    slotSeen
	passes  passes
	lookUps lookUps
	// pace adapts the bytes of a claim, budget is how many the last one might take. halved is how often the rows of a
	// search are halved.
	pace     pace
	budget   int
	halved   int
	restarts int64 // of the server, so far
}

// Settings are the limits of sweeps.
type Settings struct {
	// Page is the most rows in one claim.
	Page int
	// StaleAge is the age from which a relay without a stream takes fresh rows, and how long the slot must have been
	// free for that.
	StaleAge time.Duration
	// SendTimeout is how long a row is postponed if its claim ends without the answer.
	SendTimeout time.Duration
	// Polling: this relay never streams. It takes fresh rows while no relay streams.
	Polling bool
	// UpTo: rows without a time above this id are left alone. Only a polling relay uses it.
	UpTo int64
}

// passes are the passes of the current term that have begun.
type passes struct {
	epoch  int // of the term
	due    duePass
	lately duePass
	rows   backlogPass
	newest backlogPass
	keys   keysPass
	ground ground
	// dueGround is the same for Lately.
	dueGround dueGround
	// anyDue: the last sweep of due rows found some.
	anyDue bool
	span   span
}

// Role is what this relay may claim now, and the state on which the planner decides.
type Role struct {
	// View is the core's. Rest is how long this relay still claims only due rows, like a standby. Ready: the publisher
	// takes messages, and there is room for a claim.
	core.View
	// TakesFresh: this relay may claim rows without a time and rows with a key, because it leads or there is no leader.
	TakesFresh bool
	fresh      outbox.Fresh
	// owner is the server process that must own the slot when rows are locked; nil: no condition.
	owner *uint32
	// newest: passes over the keyless rows have shown above which ids Newest starts. lately: a pass over the due rows
	// has shown from which time Lately starts.
	newest, lately bool
}

// Role returns the current role.
func (s *Sweeper) Role() Role {
	r := Role{
		View: s.Core.View(), fresh: outbox.NoFresh(),
		newest: s.newestFrom() != greatestID, lately: s.passes.dueGround.from != nil,
	}
	rows, _ := s.room()
	r.Ready = rows > 0
	now := s.Core.Clock()
	if s.Polling && !s.slot.freeSince.IsZero() {
		r.Rest = max(s.slot.freeSince.Add(core.RestFor).Sub(now), 0)
	}
	switch {
	case r.Rest > 0:
		return r
	case r.Leader:
		r.fresh, r.owner = outbox.AllFresh(), &r.PID
	case s.slot.freeSince.IsZero(): // a relay streams
		return r
	case s.Polling:
		r.fresh, r.owner = outbox.Fresh{UpTo: s.UpTo}, &s.slot.other
	case now.Sub(s.slot.freeSince) <= s.StaleAge:
		return r
	case s.slot.other != 0: // while a stranger owns the slot, no relay can stream
		r.fresh, r.owner = outbox.AllFresh(), &s.slot.other
	default:
		r.fresh, r.owner = outbox.Fresh{Age: s.StaleAge, UpTo: math.MaxInt64}, &s.slot.other
	}
	r.TakesFresh = true
	return r
}

// room returns how many rows and bytes a claim may take now. No rows: the planner waits until there is room for a page.
func (s *Sweeper) room() (rows, bytes int) {
	if s.claims.free() == 0 {
		return 0, 0
	}
	rows, bytes = s.Core.Capacity(s.Page)
	s.budget = s.pace.of(bytes)
	return rows, s.budget
}

// some returns how many rows or keys to search for.
func (s *Sweeper) some(most int) int { return max(most>>s.halved, 1) }

// searched records a search that began at this time. If it failed late, the next one is half as large.
func (s *Sweeper) searched(began time.Time, err error) (took time.Duration) {
	switch took = s.Core.Clock().Sub(began); {
	case err == nil:
		s.halved = max(s.halved-1, 0)
	case took > longWalk:
		s.halved++
	}
	return took
}

// Next returns the sweep to run now, or None and how long to wait.
func (s *Sweeper) Next() (Sweep, time.Duration) {
	s.noticeTerm()
	return s.Planner.Next(s.Core.Clock(), s.Role())
}

// noticeTerm restarts all passes after a term has begun or ended.
func (s *Sweeper) noticeTerm() {
	epoch := s.Core.View().Epoch
	if epoch == s.passes.epoch {
		return
	}
	s.passes = passes{epoch: epoch, anyDue: s.passes.anyDue, span: s.passes.span}
	for sweep := Due; sweep < sweeps; sweep++ {
		s.Planner.Reset(sweep)
	}
}

// Once runs one sweep and reports the result to the planner. More: the next page should be read at once.
func (s *Sweeper) Once(ctx context.Context, kind Sweep) (more bool, err error) {
	s.noticeTerm()
	r := s.Role()
	var o Outcome
	began := s.Core.Clock()
	switch kind {
	case Due:
		o, err = s.sweepDue(ctx, r)
	case Lately:
		o, err = s.sweepLately(ctx, r)
	case Backlog:
		o, err = s.sweepBacklog(ctx, r)
	case Newest:
		o, err = s.sweepNewest(ctx, r)
	case Keys:
		if s.looksUp(r) {
			return s.lookUp(ctx, r)
		}
		o, err = s.passKeys(ctx, r)
	case SlotCheck:
		err = s.CheckSlot(ctx)
	}
	if o.Took == 0 && err == nil { // a failed statement says nothing about the cost of a sweep
		o.Took = s.Core.Clock().Sub(began)
	}
	s.Planner.Done(kind, s.Core.Clock(), o)
	return o.More && err == nil, err
}

// backlogPass is the state of a pass over keyless rows.
type backlogPass struct {
	begun bool
	// from is the id at which it started; last was the newest assigned id then. Newer rows belong to the next pass.
	from, after, last int64
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
		from := s.newestFrom()
		*p = backlogPass{begun: true, from: from, after: from, claimed: s.Claimed()}
		if p.last, err = s.lastID(ctx); err != nil {
			p.begun = false
			return o, err
		}
		if p.last < from { // the sequence has restarted, or is unknown now
			*p, s.passes.ground = backlogPass{}, ground{}
			return o, nil
		}
	}
	r.fresh.Keyed = p.after == p.from
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
		if left := s.Core.TakeLeft(most.Rows, p.after); len(left) > 0 {
			chosen, _ := s.Core.ChooseRows(left, false, most)
			return Outcome{More: true, Took: p.longest}, s.claim(ctx, r, chosen)
		}
	}
	upTo, read := s.passes.span.from(p.after, p.last), s.findPage
	if p.plain && upTo < greatestID { // otherwise the stream would leave all new rows in the table meanwhile
		read = s.lockPage
	}
	page, chosen, err := read(ctx, r, p.after, upTo, most)
	certain := err == nil || page.took > longWalk // an error after a long scan is probably a timeout
	if ids := passed(p.after, page.upTo, p.last); ids > 0 && certain {
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
	p.after, p.plain, p.begun = page.upTo, page.plain, page.upTo < p.last
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
	ctx context.Context, r Role, after, upTo int64, most core.Most,
) (page pageRead, chosen *core.Claim, err error) {
	began := s.Core.Clock()
	found, err := s.Table.FindBacklog(ctx, after, upTo, most.Rows, r.fresh)
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
	ctx context.Context, r Role, after, upTo int64, most core.Most,
) (page pageRead, chosen *core.Claim, err error) {
	began := s.Core.Clock()
	chosen, in := s.Core.ChooseRange(after, upTo, most)
	if chosen == nil {
		return s.findPage(ctx, r, after, upTo, most)
	}
	locked, skipped, err := s.claimRange(ctx, r, chosen, *in)
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
	s.passes.rows = backlogPass{
		begun: true, from: from, after: max(from, math.MinInt64+1) - 1, claimed: s.Claimed(),
	}
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

// look asks which transactions are visible now.
func (s *Sweeper) look(ctx context.Context, r *Role) error {
	if !r.Unseen {
		return nil
	}
	seen, err := s.Table.Snapshot(ctx, r.ForgottenAt != 0)
	if err == nil {
		s.Core.Saw(seen, r.Epoch, r.ForgottenAt)
		now := s.Core.View()
		r.Backlog, r.Live = now.Backlog, now.Live
	}
	s.Planner.looked = s.Core.Clock()
	return err
}

// safetyDue reports whether a pass without a reason is due.
func (s *Sweeper) safetyDue() bool {
	return s.Core.Clock().After(s.Planner.backlogUnasked())
}
