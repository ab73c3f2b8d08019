package fallback

import (
	"context"
	"log/slog"
	"math"
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
	FindBacklog(ctx context.Context, from, upTo int64, limit int, fresh outbox.Fresh) ([]outbox.Candidate, error)
	FindKeys(
		ctx context.Context, after *string, keys, each int, fresh outbox.Fresh,
	) ([]outbox.Run, pgsnapshot.Snapshot, error)
	FindRuns(
		ctx context.Context, keys []string, each int, fresh outbox.Fresh,
	) ([]outbox.Run, pgsnapshot.Snapshot, error)
	NextDue(ctx context.Context) (time.Duration, error)
	Snapshot(ctx context.Context, name bool) (pgsnapshot.Snapshot, error)
	LastID(ctx context.Context) (id int64, ok bool, err error)
	// Restarts counts the restarts, crashes and replacements of the server, and the first connection to it. It is up to
	// date after each successful statement.
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
	if noticed, err := s.noticeRestart(ctx); noticed || err != nil {
		return false, err
	}
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
