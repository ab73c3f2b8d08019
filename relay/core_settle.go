package relay

import (
	"slices"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// resolved takes a result in. It returns what is to be written of the row, where it is to be
// written, and the key's next message, which is to be published now.
func (c *core) resolved(r outbox.Result, decision store.Decision) (settlement store.Settlement, write bool, publish *outbox.Message) {
	c.lock()
	defer c.mu.Unlock()
	m := r.Message
	m.PossibleDuplicate = m.PossibleDuplicate || r.MayHaveArrived()
	switch {
	case decision.Action == store.Delete:
		delete(c.mu.unknown, m.Ref())
		c.mu.registry.mark(m.Ref(), confirmed)
		publish = c.keyDone(m)
	case r.Outcome == outbox.Unknown:
		c.rememberUnknown(m.Ref())
		fallthrough
	case decision.Action == store.Release:
		c.stopKey(m, false)
		if m.AvailableAt.IsZero() { // never claimed: the row is as it was
			c.mu.registry.forget(m.Ref())
			if m.OrderingKey == nil {
				c.leave(m)
			}
			c.letGo(m)
			return settlement, false, nil
		}
		c.mu.registry.mark(m.Ref(), givenBack)
	case decision.Action == store.Retry:
		c.mu.registry.mark(m.Ref(), givenBack)
		c.stopKey(m, true)
	default: // a dead letter: its key goes on when it was moved
		c.mu.registry.mark(m.Ref(), givenBack)
	}
	return store.NewSettlement(r, decision), true, publish
}

func (c *core) keyDone(m *outbox.Message) *outbox.Message {
	if m.OrderingKey == nil {
		return nil
	}
	signal(c.wake)
	next := c.mu.gate.done(m)
	switch {
	case next == nil:
		return nil
	case !next.AvailableAt.IsZero() && elapsed(next.TakenAt, c.mu.movedAt) >= c.mu.lease/2:
		// The broker's answer might come after its lease: it is claimed anew.
		c.stopKey(next, true)
		c.leaveQueued([]*outbox.Message{next})
		return nil
	}
	next.TakenAt = c.mu.movedAt // queues are dropped where the slot may be lost
	return next
}

func (c *core) stopKey(m *outbox.Message, waiting bool) {
	if m.OrderingKey == nil {
		return
	}
	c.leaveQueued(c.mu.gate.stop(m, waiting))
	signal(c.wake)
}

// mayBeKnownToBroker tells whether this process has published the row before and
// never heard what came of it.
func (c *core) mayBeKnownToBroker(m *outbox.Message) bool {
	_, found := c.mu.unknown[m.Ref()]
	return found || c.mu.unknownMany
}

func (c *core) rememberUnknown(ref outbox.Ref) {
	if len(c.mu.unknown) >= c.most.unknown {
		c.mu.unknownMany = true
		return
	}
	c.mu.unknown[ref] = struct{}{}
}

// settled is told what was written. With block, the key of a dead letter waits. It
// returns the messages to publish now.
func (c *core) settled(done []store.Settlement, block bool) (publish []*outbox.Message) {
	return c.written(done, nil, block)
}

// written is settled, with the rows that a statement did not find as they were: a dead letter
// among them was not moved, and may be in the table under somebody's lease.
func (c *core) written(done, gone []store.Settlement, block bool) (publish []*outbox.Message) {
	c.lock()
	defer c.mu.Unlock()
	for i, s := range slices.Concat(done, gone) {
		m := s.Message
		standing := deleted
		switch s.Decision.Action {
		case store.Retry, store.Release:
			standing = kept
			c.dueMoves()
		case store.DeadLetter:
			standing = dead
			if c.mu.registry.isBack(m.Ref()) {
				c.dueMoves()
			}
			if i >= len(done) {
				standing = kept
				c.stopKey(m, false)
			} else if block {
				c.stopKey(m, true)
			} else if next := c.keyDone(m); next != nil {
				publish = append(publish, next)
			}
		}
		waits := s.Decision.Action == store.Retry && s.Decision.Delay > 0
		if m.OrderingKey != nil && !waits && (!m.AvailableAt.IsZero() || c.mu.gate.waits(*m.OrderingKey)) {
			c.keyMoved(*m.OrderingKey)
		}
		delete(c.mu.unknown, m.Ref()) // what is in doubt stands in the row now
		c.mu.registry.settle(m.Ref(), standing)
		c.letGo(m)
	}
	if floor := c.mu.registry.overflow(); floor != 0 {
		c.mu.floor = max(c.mu.floor, floor)
	}
	return publish
}

// keyMoved notes that a claim may find the next rows of a key, unless some are in memory.
func (c *core) keyMoved(key string) {
	switch {
	case c.mu.gate.holds(key):
	case len(c.mu.moved) < c.most.keys:
		c.mu.moved[key] = struct{}{}
	default:
		c.mu.movedMany = true
	}
}

// turnedInvisible moves rows out of the window that cannot be settled yet; visible
// takes them back in, right before they are reported as settled.
func (c *core) turnedInvisible(n []store.Settlement) {
	c.lock()
	defer c.mu.Unlock()
	for _, s := range n {
		c.letGo(s.Message)
		s.Message.Payload, s.Message.Headers, s.Message.Properties = nil, nil, nil // published
		c.mu.invisible++
	}
}

func (c *core) turnedVisible(n []store.Settlement) {
	c.lock()
	defer c.mu.Unlock()
	for _, s := range n {
		c.mu.invisible--
		c.mu.messages++
		c.mu.bytes += s.Message.Size()
	}
}
