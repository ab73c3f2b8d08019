package core

import "github.com/cdc-relay/cdc-relay/outbox"

// Resolved decides about a message after the broker's answer. The next message of its key may leave then.
func (c *Core) Resolved(r outbox.Result) (out Out, decision outbox.Decision) {
	decision = Decide(r, c.policy, c.Random(), c.Clock())
	c.lock()
	defer c.mu.Unlock()
	m, s := r.Message, outbox.NewSettlement(r, decision)
	c.mu.marks.resolved(r, c.mu.now)
	switch {
	case decision.Action == outbox.Delete || decision.KeyGoesOn:
		var next *outbox.Message
		if m.OrderingKey != nil {
			if c.late() {
				c.leaveQueue(c.mu.keys.unqueue(*m.OrderingKey))
			}
			if next = c.mu.keys.confirmed(m); next != nil {
				next.TakenAt = c.mu.lease.owned
			}
		}
		return c.settling(s, next), decision
	case decision.Action != outbox.Release:
		if m.OrderingKey != nil {
			c.leaveQueue(c.mu.keys.stop(m))
		}
		return c.settling(s, nil), decision
	}
	if m.OrderingKey != nil {
		c.leaveQueue(c.mu.keys.stop(m))
	}
	c.release(m)
	return Out{}, decision
}

// settling returns the Out for a row to settle, and the next message of its key, if any.
func (c *Core) settling(s outbox.Settlement, next *outbox.Message) Out {
	out := publish(next)
	out.Settle = []outbox.Settlement{s}
	if key := s.Message.OrderingKey; key != nil && next == nil {
		k := c.mu.keys.byKey[*key]
		out.Soon = k != nil && k.place != direct
	}
	return out
}

// release leaves a row unchanged in the table: its outcome is unknown, or it was not sent.
func (c *Core) release(m *outbox.Message) {
	c.forget(m.Ref(), m.Size())
	if m.OrderingKey == nil && m.AvailableAt != nil {
		c.wantAgain(m)
		return
	}
	c.leaveInTable(m)
	if m.OrderingKey != nil {
		c.mu.keys.released(m)
	}
}

// Settled records rows that the settler has written, or has found deleted.
func (c *Core) Settled(done []outbox.Settlement) {
	c.lock()
	defer c.mu.Unlock()
	for _, s := range done {
		c.settle(s)
	}
	c.Wake.Send()
}

func (c *Core) settle(s outbox.Settlement) {
	m := s.Message
	if s.Decision.Action != outbox.Delete {
		c.wantDue()
	}
	c.mu.keys.yields(m, s.Decision.Action != outbox.Delete)
	if s.Decision.Reason == outbox.ReasonCoalesced && m.OrderingKey != nil {
		c.mu.keys.dropped(*m.OrderingKey)
	}
	c.forget(m.Ref(), m.Size())
	if m.OrderingKey != nil {
		c.mu.keys.released(m)
	}
}

// SetAside gives up a row that can be neither deleted nor updated, until it is Settled nevertheless. This process does
// not publish it again.
func (c *Core) SetAside(s outbox.Settlement) {
	c.lock()
	defer c.mu.Unlock()
	c.forget(s.Message.Ref(), s.Message.Size())
	c.mu.registry.putAside(s.Message.Ref())
	c.mu.marks.older = max(c.mu.marks.older, s.Message.ID)
	c.mu.keys.yields(s.Message, true)
	if s.Message.OrderingKey != nil {
		c.mu.keys.released(s.Message)
	}
}

// MarkLate marks rows that are to be updated or moved after another leader may have published them.
func (c *Core) MarkLate(rows []outbox.Settlement) {
	c.lock()
	defer c.mu.Unlock()
	late := !c.mu.term.leader || outbox.Elapsed(c.mu.lease.owned, c.mu.now) > RestFor
	for _, one := range rows {
		if m := one.Message; one.Decision.Action != outbox.Delete && (late || m.TakenAt.Before(c.mu.term.began)) {
			m.PossibleDuplicate = true
		}
	}
}
