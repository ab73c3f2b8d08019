package core

import "github.com/cdc-relay/cdc-relay/outbox"

// TakeWanted returns up to n keys to look up: those with fresh rows, or those that yield. The caller answers each with
// Found or NotFound.
func (c *Core) TakeWanted(n int, yielding bool) (keys []string) {
	c.lock()
	defer c.mu.Unlock()
	if yielding {
		return c.mu.keys.take(&c.mu.keys.yielding, n)
	}
	return c.mu.keys.take(&c.mu.keys.wanted, n)
}

// LookAgain asks for a look-up of all keys whose last look-up has claimed nothing.
func (c *Core) LookAgain() {
	c.lock()
	defer c.mu.Unlock()
	o := &c.mu.keys
	o.yielding, o.again = append(o.yielding, o.again...), nil
}

// WantKeys asks for a look-up of keys that have due rows.
func (c *Core) WantKeys(keys []string) {
	c.lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		k := c.mu.keys.remember(key)
		if k == nil {
			continue // the next pass over all keys finds it
		}
		k.yields = true
		switch k.place {
		case directly:
			k.place = behind
		case parked:
			c.mu.keys.want(key)
		}
		c.mu.keys.look(key, k)
	}
}

// NotFound returns keys whose look-up failed; they are looked up again.
func (c *Core) NotFound(asked []string) {
	c.lock()
	defer c.mu.Unlock()
	for _, key := range asked {
		c.mu.keys.want(key)
	}
}

// Found records the first rows of keys, up to each of a key. Asked are the keys that were looked up; nil: a pass over all
// keys. The caller took the snapshot before the query, and the query began in this epoch. Found returns the rows of at
// most n keys, which are claimed now.
func (c *Core) Found(asked []string, runs []outbox.Run, each int, snapshot outbox.Snapshot, epoch, n int) (take []outbox.Candidate) {
	c.lock()
	defer c.mu.Unlock()
	if epoch != c.mu.term.epoch { // the answer may come from another server
		for _, key := range asked {
			c.mu.keys.want(key)
		}
		return nil
	}
	c.saw(snapshot)
	found := make(map[string]bool, len(runs))
	for _, run := range runs {
		key := *run[0].OrderingKey
		found[key] = true
		if asked == nil && len(run) < each && c.leaving(key, run) {
			continue
		}
		if !c.found(key, run[0], asked != nil, n > 0) {
			continue
		}
		take = append(take, run...)
		n--
		if k := c.mu.keys.byKey[key]; len(run) < each && k.left < c.mu.unseen.visible() {
			k.rows = len(run)
		}
	}
	for _, key := range asked {
		if !found[key] {
			c.empty(key)
		}
	}
	return take
}

// leaving reports whether all rows of an unknown key are in memory: they are confirmed, and about to be deleted.
// Nothing waits in the table then, and the stream continues to publish the key's rows.
func (c *Core) leaving(key string, run outbox.Run) bool {
	if c.mu.keys.byKey[key] != nil || c.mu.keys.unlisted {
		return false
	}
	for _, row := range run {
		if !c.mu.registry.holds(row.Ref) || c.mu.registry.setAside(row.Ref) {
			return false
		}
	}
	return true
}

// found records one head. It reports whether the key is claimed.
func (c *Core) found(key string, head outbox.Candidate, asked, more bool) bool {
	o := &c.mu.keys
	held := c.mu.registry.holds(head.Ref)
	k := o.byKey[key]
	switch {
	case k == nil && asked:
		return false // the key was forgotten when its term ended
	case k == nil && !o.leads && (held || !head.Ready):
		return false
	case k == nil && head.Ready && more && !held:
		k = &keyState{place: behind} // with too many keys, it is forgotten after the claim
		o.add(key, k)
	case k == nil:
		if k = o.remember(key); k == nil {
			o.miss(c.mu.unseen.seq)
			return false
		}
	}
	k.pass = o.pass
	switch {
	case k.place == claimed && !asked:
		k.rows = 0 // the pass may have seen a row that the claim does not have
		return false
	case k.place == directly:
		return false // its messages in memory leave first, and the stream brings the next ones
	case held && c.mu.registry.setAside(head.Ref):
		o.park(key, k)
		return false
	case held || len(k.line) > 0:
		k.place = behind // until that message has landed
		return false
	case !head.Ready && k.place == wanted:
		return false // the row may have been deleted since the query
	case !head.Ready:
		o.park(key, k)
		return false
	case !more: // a key that the stream has left a row of goes first
		k.place, k.yields = behind, true
		o.look(key, k)
		return false
	}
	k.place, k.rows = claimed, 0
	return true
}

// empty records that a key has no visible rows.
func (c *Core) empty(key string) {
	k := c.mu.keys.byKey[key]
	switch {
	case k == nil || k.place != claimed:
	case len(k.line) == 0 && k.left < c.mu.unseen.visible():
		c.mu.keys.drop(key)
	default:
		c.mu.keys.lookAgain(key, k) // its rows are not visible yet
	}
}
