package fallback

import (
	"context"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// keysPass is the state of a pass over all ordering keys.
type keysPass struct {
	begun  bool
	after  *string
	number int
}

// lookUps are the last look-ups of keys.
type lookUps struct {
	// depth is about how many rows each of the last keys had, at most usualRun. replaced: newer rows replace all of
	// them.
	depth    int
	replaced bool
	// lookedUp: the last sweep of keys looked up wanted keys. yielded: these were keys that yield.
	lookedUp, yielded bool
	// again is the wait before keys are looked up again of which nothing could be read.
	again time.Duration
}

const (
	// longestRun is how many rows of one key a look-up takes at most, unless newer rows replace them.
	longestRun = 64
	// usualRun is the limit while more keys have rows than fit in a look-up. Longer runs of fewer keys cost Postgres
	// less, but each row waits for the confirm of the row before it.
	usualRun = 4
)

// firstAgain is the first wait before keys are looked up again of which nothing could be read. It doubles up to the
// poll interval. Other keys do not wait for them.
const firstAgain = 20 * time.Millisecond

// looksUp reports whether the next sweep of keys looks up wanted keys. A pass over all keys takes turns with look-ups.
func (s *Sweeper) looksUp(r Role) bool {
	passDue := !s.Planner.keysAt(r).After(s.Core.Clock())
	s.lookUps.lookedUp = (r.Wanted+r.Yielding > 0 || s.looksAgain(r)) && (!passDue || !s.lookUps.lookedUp)
	return s.lookUps.lookedUp
}

// looksAgain reports whether keys are due of which the last look-up read nothing.
func (s *Sweeper) looksAgain(r Role) bool {
	return r.Again > 0 && !s.Planner.againAt.After(s.Core.Clock())
}

// lookUp reads rows of wanted keys. Keys with fresh rows and keys that yield take turns.
func (s *Sweeper) lookUp(ctx context.Context, r Role) (more bool, err error) {
	rows, bytes := s.room()
	again := s.looksAgain(r)
	view := s.Core.View()
	wanted, yielding := view.Wanted, view.Yielding
	if again {
		yielding += view.Again
	}
	if s.lookUps.yielded = yielding > 0 && (wanted == 0 || !s.lookUps.yielded); s.lookUps.yielded {
		wanted = yielding
	}
	keys := s.Core.TakeWanted(min(s.some(s.keysFor(rows)), wanted), s.lookUps.yielded, again)
	if len(keys) > 0 {
		found := core.Found{Asked: keys, Each: s.runOf(rows, len(keys)), Epoch: r.Epoch}
		began := s.Core.Clock()
		found.Runs, found.Snapshot, err = s.Table.FindRuns(ctx, keys, found.Each, s.UpTo)
		s.searched(began, err)
		if found.Failed = err != nil; !found.Failed {
			s.measure(found.Runs)
		}
		chosen := s.Core.ChooseRuns(found, len(keys), core.Most{Rows: rows, Bytes: bytes})
		if err == nil {
			err = s.readRuns(ctx, r, chosen)
		}
		if err != nil {
			return false, err
		}
	}
	view = s.Core.View()
	switch {
	case view.Again == 0:
		s.lookUps.again = 0
	case again || s.lookUps.again == 0:
		s.lookUps.again = min(max(2*s.lookUps.again, firstAgain), s.Planner.pollInterval)
		s.Planner.againAt = s.Core.Clock().Add(s.lookUps.again)
	}
	s.Planner.wantedAt = s.Core.Clock()
	return view.Wanted+view.Yielding > 0, nil
}

// passKeys reads rows of the next page of a pass over all keys.
func (s *Sweeper) passKeys(ctx context.Context, r Role) (o Outcome, err error) {
	p := &s.passes.keys
	rows, bytes := s.room()
	if rows == 0 {
		return Outcome{More: p.begun}, nil
	}
	if !p.begun {
		*p = keysPass{begun: true, number: s.Core.KeysBegan()}
	}
	limit := s.some(s.keysFor(s.Page))
	each := s.runOf(rows, limit)
	began := s.Core.Clock()
	runs, seen, err := s.Table.FindKeys(ctx, p.after, limit, each, s.UpTo)
	if s.searched(began, err); err != nil {
		*p = keysPass{}
		return o, err
	}
	s.measure(runs)
	found := core.Found{
		Runs: runs, Each: each, Snapshot: seen, Epoch: r.Epoch,
		Pass: p.number, First: p.after == nil, Last: len(runs) < limit,
	}
	if *p = (keysPass{}); !found.Last {
		*p = keysPass{begun: true, number: found.Pass, after: runs[len(runs)-1][0].OrderingKey}
	}
	chosen := s.Core.ChooseRuns(found, rows, core.Most{Rows: rows, Bytes: bytes})
	return Outcome{More: !found.Last}, s.readRuns(ctx, r, chosen)
}

// keysFor returns how many keys to read to find this many rows.
func (s *Sweeper) keysFor(rows int) int { return max(rows/max(s.lookUps.depth, 1), 1) }

// runOf returns how many rows of each key to read to find this many rows. It asks for more than the keys had last time,
// to learn whether they have more.
func (s *Sweeper) runOf(rows, keys int) int {
	longest := longestRun
	if s.lookUps.replaced {
		longest = max(s.Page, longestRun)
	}
	return min(max(rows/keys, min(2*max(s.lookUps.depth, 1), usualRun)), longest)
}

// measure records how many rows each key had, and whether newer rows replace all of them. Those wait for no confirm, so
// a look-up may take more of them.
func (s *Sweeper) measure(runs []outbox.Run) {
	rows := 0
	s.lookUps.replaced = len(runs) > 0
	for _, run := range runs {
		rows += len(run)
		remains := func(row outbox.Candidate) bool { return !row.Superseded }
		s.lookUps.replaced = s.lookUps.replaced && !slices.ContainsFunc(run, remains)
	}
	s.lookUps.depth = min(max(rows/max(len(runs), 1), 1), usualRun)
}

// readRuns reads and publishes the chosen runs.
func (s *Sweeper) readRuns(ctx context.Context, r Role, chosen core.Chosen) error {
	if len(chosen) == 0 {
		return nil
	}
	rows, position, err := s.Table.ReadRows(ctx, chosen.IDs(), s.UpTo)
	s.prove(ctx)
	s.apply(s.Core.SweptRuns(chosen, core.Read{Messages: rows, Position: position, Epoch: r.Epoch}))
	return err
}
