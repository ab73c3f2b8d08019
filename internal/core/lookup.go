package core

import (
	"github.com/cdc-relay/cdc-relay/internal/pgsnapshot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// TakeWanted returns up to n keys to look up: those with fresh rows, or those that yield. Again: keys whose last
// look-up has read nothing yield from now on. The caller passes the keys to ChooseRuns.
func (c *Core) TakeWanted(n int, yielding, again bool) (keys []string) {
	c.lock()
	defer c.mu.Unlock()
	ks := &c.mu.keys
	if again {
		ks.yielding, ks.again = append(ks.yielding, ks.again...), nil
	}
	if yielding {
		return ks.take(&ks.yielding, n)
	}
	keys = ks.take(&ks.calm, (n+1)/2)
	keys = append(keys, ks.take(&ks.wanted, n-len(keys))...)
	return append(keys, ks.take(&ks.calm, n-len(keys))...)
}

// wantKey asks for a look-up of a key that has due rows, or fresh ones.
func (c *Core) wantKey(key string, due bool) {
	before := c.mu.keys.byKey[key]
	k := c.mu.keys.remember(key)
	if k == nil {
		return // the next pass over all keys finds it
	}
	k.yields = k.yields || due
	switch k.place {
	case direct:
		k.place = draining
	case blocked:
		c.mu.keys.want(key)
	}
	c.mu.keys.look(key, k, before == nil)
}

// Found is what a query has found: the first rows of keys.
type Found struct {
	// Runs are the first rows of each key, up to Each.
	Runs []outbox.Run
	Each int
	// Asked are the keys that were looked up; nil: Runs is a page of a pass over all keys. First and Last: it is the
	// first or last page. Pass is the number of the pass.
	Asked       []string
	First, Last bool
	Pass        int
	// Failed: the query failed, so all asked keys are looked up again.
	Failed bool
	// Snapshot was taken before the query. The query began in this epoch.
	Snapshot pgsnapshot.Snapshot
	Epoch    int
}

// ofRuns returns the runs of at most n keys, which are read now.
func (c *Core) ofRuns(f Found, n int) (runs []outbox.Run) {
	found := make(map[string]bool, len(f.Runs))
	for _, run := range f.Runs {
		key := *run[0].OrderingKey
		found[key] = true
		if f.Asked == nil && len(run) < f.Each && c.leaving(key, run) {
			continue
		}
		if !c.found(key, run[0], f.Asked != nil, n > 0) {
			continue
		}
		runs = append(runs, run)
		n--
		if k := c.mu.keys.byKey[key]; len(run) < f.Each && k.left < c.mu.unseen.visible() {
			k.rows = len(run)
		}
	}
	for _, key := range f.Asked {
		if !found[key] {
			c.empty(key)
		}
	}
	return runs
}

// leaving reports whether all rows of an unknown key are in memory: they are confirmed, and about to be deleted.
// Nothing waits in the table then, and the stream continues to publish the key's rows.
func (c *Core) leaving(key string, run outbox.Run) bool {
	if c.mu.keys.byKey[key] != nil || c.mu.keys.unknownKeysMayWait {
		return false
	}
	for _, row := range run {
		if !c.mu.registry.holds(row.Ref) || c.mu.registry.setAside(row.Ref) {
			return false
		}
	}
	return true
}

// found records one head. It reports whether rows of the key are read.
func (c *Core) found(key string, head outbox.Candidate, asked, more bool) bool {
	ks := &c.mu.keys
	held := c.mu.registry.holds(head.Ref)
	k := ks.byKey[key]
	switch {
	case k == nil && asked:
		return false // the key was forgotten when its term ended
	case k == nil && head.Ready && more && !held:
		k = &keyState{place: draining} // with too many keys, it is forgotten when its line is empty
		ks.add(key, k)
	case k == nil:
		if k = ks.remember(key); k == nil {
			ks.miss(c.mu.unseen.seq)
			return false
		}
	}
	k.pass = ks.pass
	switch {
	case k.place == swept && !asked:
		k.rows = 0 // the pass may have seen a row that the look-up does not have
		return false
	case k.place == direct:
		return false // its messages in memory leave first, and the stream brings the next ones
	case held && c.mu.registry.setAside(head.Ref):
		k.block()
		return false
	case held || len(k.line) > 0:
		k.place = draining // until that message is released
		return false
	case !head.Ready && k.place == toLookUp:
		return false // the row may have been deleted since the query
	case !head.Ready:
		k.block()
		return false
	case !more: // a key that the stream has left a row of goes first
		k.place, k.yields = draining, true
		ks.look(key, k, false)
		return false
	}
	k.place, k.rows = swept, 0
	return true
}

// empty records that a key has no visible rows.
func (c *Core) empty(key string) {
	k := c.mu.keys.byKey[key]
	switch {
	case k == nil || k.place != swept:
	case len(k.line) == 0 && k.left < c.mu.unseen.visible():
		c.mu.keys.forget(key)
	default:
		c.mu.keys.lookAgain(key, k) // its rows are not visible yet
	}
}
