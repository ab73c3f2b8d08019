package fallback

import (
	"context"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// keysPass is where a pass over all ordering keys stands.
type keysPass struct {
	begun    bool
	after    *string
	number   int
	complete bool
}

const (
	// longestRun is how many rows of a key one claim takes at most.
	longestRun = 64
	// usualRun is how many it takes if more keys have rows than it has room for. Longer runs of fewer keys cost Postgres
	// less, but each row waits for the confirm of the one before it.
	usualRun = 4
)

// firstAgain is how soon keys are looked up again of which none was free.
const firstAgain = 20 * time.Millisecond

// looksUp tells whether the next sweep of keys is of those that are wanted; a pass over all keys takes turns with it.
func (s *Sweeper) looksUp(r role) bool {
	passDue := !s.Planner.keysAt(s.View()).After(s.now())
	s.lookedUp = r.view.Wanted > 0 && (!passDue || !s.lookedUp)
	return s.lookedUp
}

// lookUp claims rows of keys that are wanted.
func (s *Sweeper) lookUp(ctx context.Context, r role) (more bool, err error) {
	rows, bytes := s.Core.Capacity(s.Page)
	// A share of them, so that other claims find some.
	free := max(s.claims.free(), 1)
	keys := s.Core.TakeWanted(min(s.keysFor(rows), (r.view.Wanted+free-1)/free))
	claimed := 0
	if len(keys) > 0 {
		runs, seen, err := s.Table.FindRuns(ctx, keys, s.runOf(rows, len(keys)), r.fresh)
		if err != nil {
			s.Core.NotFound(keys)
			return false, err
		}
		s.measure(runs)
		if claimed, err = s.claim(ctx, r, s.Core.Found(keys, runs, seen, r.view.Epoch, len(keys)), rows, bytes); err != nil {
			return false, err
		}
	}
	if s.again = min(max(2*s.again, firstAgain), s.Planner.pollInterval); claimed > 0 || s.Core.View().Wanted == 0 {
		s.again = 0
	}
	s.Planner.LookedUp(s.now(), s.again)
	return s.again == 0, nil
}

// passKeys claims rows of the next keys of a pass over all of them.
func (s *Sweeper) passKeys(ctx context.Context, r role) (o Outcome, err error) {
	p := &s.keys
	rows, bytes := s.Core.Capacity(s.Page)
	if rows == 0 {
		return Outcome{More: p.begun}, nil
	}
	if !p.begun {
		*p = keysPass{begun: true, number: s.Core.KeysBegan()}
	}
	limit := s.keysFor(s.Page)
	runs, seen, err := s.Table.FindKeys(ctx, p.after, limit, s.runOf(rows, limit), r.fresh)
	if err != nil {
		*p = keysPass{}
		return o, err
	}
	s.measure(runs)
	if p.after == nil {
		s.Core.Saw(seen, r.view.Epoch, 0)
		p.complete = s.Core.SeesAllKeys()
	}
	o.More = len(runs) >= limit
	if o.More {
		p.after = runs[len(runs)-1][0].OrderingKey
	}
	share := rows
	if !o.More { // so few that other claims find none otherwise
		free := max(s.claims.free(), 1)
		share = min(rows, (len(runs)+free-1)/free)
	}
	if !r.view.Leader { // several relays take the same keys in vain
		s.Shuffle(len(runs), func(i, j int) { runs[i], runs[j] = runs[j], runs[i] })
	}
	_, err = s.claim(ctx, r, s.Core.Found(nil, runs, seen, r.view.Epoch, share), rows, bytes)
	if !o.More {
		s.Core.KeysEnded(p.number, p.complete && r.view.Epoch == s.Core.View().Epoch)
		*p = keysPass{}
	}
	return o, err
}

// keysFor is how many keys are looked up to find so many rows.
func (s *Sweeper) keysFor(rows int) int { return max(rows/max(s.depth, 1), 1) }

// runOf is how many rows of each of so many keys are looked up to find so many rows: more than the keys had last time,
// which tells whether they have more.
func (s *Sweeper) runOf(rows, keys int) int {
	return min(max(rows/keys, min(2*max(s.depth, 1), usualRun)), longestRun)
}

// measure notes how many rows the keys have that were looked up.
func (s *Sweeper) measure(runs []outbox.Run) {
	rows := 0
	for _, run := range runs {
		rows += len(run)
	}
	s.depth = min(max(rows/max(len(runs), 1), 1), usualRun)
}
