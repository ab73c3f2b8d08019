package fallback

import (
	"context"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/outagelog"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/pgsnapshot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Table is what sweeps need from the outbox table.
type Table interface {
	FindDue(
		ctx context.Context, after *outbox.Place, until *time.Time, limit int,
	) ([]outbox.Candidate, time.Time, error)
	// FindNewest finds rows without a time, with a key or without.
	FindNewest(ctx context.Context, from, upTo int64, limit int) ([]outbox.Candidate, error)
	FindKeys(
		ctx context.Context, after *string, keys, each int, upTo int64,
	) ([]outbox.Run, pgsnapshot.Snapshot, error)
	FindRuns(ctx context.Context, keys []string, each int, upTo int64) ([]outbox.Run, pgsnapshot.Snapshot, error)
	// ReadRows reads rows that may leave now, in the order of ids. It leaves out those that a session has locked.
	ReadRows(ctx context.Context, ids []int64, upTo int64) ([]*outbox.Message, uint64, error)
	// ReadRange reads the first rows of a range without a key and without a time.
	ReadRange(ctx context.Context, in outbox.Range) (outbox.Page, error)
	// ReadBody reads a row whose body was not read with it, unless that has more than most bytes; 0: no limit. Nil: the
	// row may not leave any more.
	ReadBody(ctx context.Context, m *outbox.Message, most int) (*outbox.Message, error)
	NextDue(ctx context.Context) (time.Duration, error)
	Snapshot(ctx context.Context, name bool) (pgsnapshot.Snapshot, error)
	LastID(ctx context.Context) (id int64, ok bool, err error)
}

// Sweeper runs sweeps while this relay leads. Only one goroutine may call Run or Once.
type Sweeper struct {
	Core  *core.Core
	Table Table
	// Apply does what the core has decided.
	Apply func(core.Out)
	// MostBody returns the largest body that the broker accepts, in bytes; 0: unknown.
	MostBody func() int
	// Explain says what an error of a statement means, and whether the table or a column is gone. Retry is the wait
	// after an error.
	Explain func(context.Context, error) (err error, gone bool)
	Retry   *backoff.ExponentialBackOff
	Log     *slog.Logger
	// Trouble has the errors of Run, which calls Beat at least every BeatEvery.
	Trouble   *outagelog.Log
	Beat      func()
	BeatEvery time.Duration

	Planner *Planner
	Settings

	swept   int  // rows, so far
	live    bool // at the last look
	passes  passes
	lookUps lookUps
	// halved is how often the rows of a search are halved.
	halved int
	// prove waits until this relay certainly leads, or knows that it does not. Run sets it.
	prove func(context.Context)
}

// Settings are the limits of sweeps.
type Settings struct {
	// Page is how many rows a statement reads at most.
	Page int
	// UpTo: rows without a time above this id are left alone.
	UpTo int64
}

// passes are the passes of the current term that have begun.
type passes struct {
	epoch  int // of the term
	due    duePass
	lately duePass
	rows   backlogPass
	keys   keysPass
	// newest is the id after which the next page of Newest starts, if newestBegun.
	newest      int64
	newestBegun bool
	// ground is where Newest starts, dueGround where Lately starts.
	ground    ground
	dueGround dueGround
	// anyDue: the last sweep of due rows found some.
	anyDue bool
	span   span
}

// Role is what this relay may do now, and the state on which the planner decides.
type Role struct {
	// View is the core's. Ready: the publisher takes messages, and there is room for a page.
	core.View
	// Sweeps: this relay leads, and no relay before it may still publish.
	Sweeps bool
	// newest: passes over the keyless rows have shown above which ids Newest starts. lately: a pass over the due rows
	// has shown from which time Lately starts.
	newest, lately bool
}

// Role returns the current role.
func (s *Sweeper) Role() Role {
	r := Role{View: s.Core.View(), newest: s.newestFrom() != greatestID, lately: s.passes.dueGround.from != nil}
	rows, _ := s.room()
	r.Ready, r.Sweeps = rows > 0, r.Leader && r.Rest == 0
	return r
}

// room returns how many rows and bytes a sweep may read now. No rows: the planner waits until there is room for a page.
func (s *Sweeper) room() (rows, bytes int) { return s.Core.Capacity(s.Page) }

func (s *Sweeper) apply(out core.Out) {
	s.swept += out.Swept
	s.Apply(out)
}

// readBodies reads large bodies, one at a time. Other rows leave meanwhile.
func (s *Sweeper) readBodies(ctx context.Context) {
	for ctx.Err() == nil {
		if m := s.Core.NextBody(); m != nil {
			s.readBody(ctx, m)
		} else {
			await(ctx, s.BeatEvery, s.Core.Bodies)
		}
	}
}

func (s *Sweeper) readBody(ctx context.Context, m *outbox.Message) {
	read, err := s.Table.ReadBody(ctx, m, s.MostBody())
	if err != nil {
		read = nil // the body may be a part
	}
	if err != nil && ctx.Err() == nil {
		s.Log.Warn("cannot read the body of a large row: retrying; other rows leave meanwhile",
			"event", event.SweepFailing, "id", m.ID, "error", pgdial.Text(err))
	}
	s.prove(ctx)
	s.Apply(s.Core.BodyRead(m, read))
}

// certain waits until this relay certainly leads: a statement may have taken long. The core asks the leader for proof.
func (s *Sweeper) certain(ctx context.Context) {
	for ctx.Err() == nil && !s.Core.Certain() {
		s.Beat()
		await(ctx, askCertain, nil)
	}
}

// askCertain is how often the sweeper asks whether this relay certainly leads.
const askCertain = 5 * time.Millisecond

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

// noticeTerm restarts all passes after a term has begun or ended. After a stream has begun, it hastens those that find
// the rows before its start.
func (s *Sweeper) noticeTerm() {
	v := s.Core.View()
	if v.Live && !s.live {
		s.Planner.hasten(Backlog)
		s.Planner.hasten(Keys)
	}
	s.live = v.Live
	if v.Epoch == s.passes.epoch {
		return
	}
	s.passes = passes{epoch: v.Epoch, anyDue: s.passes.anyDue, span: s.passes.span}
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
