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

// longestRun is how many rows of a key one claim takes at most.
const longestRun = 64

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
	keys := s.Core.TakeWanted(min(rows, (r.view.Wanted+free-1)/free))
	claimed := 0
	if len(keys) > 0 {
		heads, seen, err := s.Table.FindHeads(ctx, keys, r.fresh)
		if err != nil {
			s.Core.NotFound(keys)
			return false, err
		}
		if claimed, err = s.claimRuns(ctx, r, s.Core.Found(keys, heads, seen, r.view.Epoch, len(keys)), rows, bytes); err != nil {
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
	heads, seen, err := s.Table.FindKeys(ctx, p.after, s.Page, r.fresh)
	if err != nil {
		*p = keysPass{}
		return o, err
	}
	if p.after == nil {
		s.Core.Saw(seen, r.view.Epoch, 0)
		p.complete = s.Core.SeesAllKeys()
	}
	o.More = len(heads) >= s.Page
	if o.More {
		p.after = heads[len(heads)-1].OrderingKey
	}
	share := rows
	if !o.More { // so few that other claims find none otherwise
		free := max(s.claims.free(), 1)
		share = min(rows, (len(heads)+free-1)/free)
	}
	if !r.view.Leader { // several relays take the same keys in vain
		s.Shuffle(len(heads), func(i, j int) { heads[i], heads[j] = heads[j], heads[i] })
	}
	_, err = s.claimRuns(ctx, r, s.Core.Found(nil, heads, seen, r.view.Epoch, share), rows, bytes)
	if !o.More {
		s.Core.KeysEnded(p.number, p.complete && r.view.Epoch == s.Core.View().Epoch)
		*p = keysPass{}
	}
	return o, err
}

// claimRuns claims these oldest rows of their keys, and what follows them.
func (s *Sweeper) claimRuns(ctx context.Context, r role, heads []outbox.Candidate, rows, bytes int) (claimed int, err error) {
	if len(heads) == 0 {
		return 0, nil
	}
	each := min(max(rows/len(heads), 1), longestRun)
	if each == 1 {
		return s.claim(ctx, r, heads, rows, bytes)
	}
	found, err := s.Table.FindRuns(ctx, heads, each, r.fresh)
	if err != nil {
		keys := make([]string, len(heads))
		for i, head := range heads {
			keys[i] = *head.OrderingKey
		}
		s.Core.NotFound(keys)
		return 0, err
	}
	return s.claim(ctx, r, append(found, s.vanished(heads, found)...), rows, bytes)
}

// vanished are heads of keys of which nothing was found any more: the claim has their keys looked up again.
func (s *Sweeper) vanished(heads, found []outbox.Candidate) (gone []outbox.Candidate) {
	seen := make(map[string]bool, len(heads))
	for _, row := range found {
		seen[*row.OrderingKey] = true
	}
	for _, head := range heads {
		if !seen[*head.OrderingKey] {
			head.Ready = false
			gone = append(gone, head)
		}
	}
	return gone
}
