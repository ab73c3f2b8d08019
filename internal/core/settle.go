package core

import "github.com/cdc-relay/cdc-relay/outbox"

// Resolved decides about a message after the broker's answer. The next message of its key may leave then. An open claim
// writes its own rows.
func (c *Core) Resolved(r outbox.Result) (Out, outbox.Decision) {
	decision := Decide(r, c.policy, c.Random(), c.Clock())
	c.lock()
	defer c.mu.Unlock()
	return c.decided(r, decision), decision
}

func (c *Core) decided(r outbox.Result, decision outbox.Decision) Out {
	m, s := r.Message, outbox.NewSettlement(r, decision)
	c.mu.marks.resolved(r)
	if claim := c.mu.registry[m.Ref()].claim; claim != nil {
		return claim.resolve(answer{s, r.Outcome})
	}
	return c.resolved(answer{s, r.Outcome})
}

// answer is the decision for a message, with the broker's answer.
type answer struct {
	outbox.Settlement
	outcome outbox.Outcome
}

// resolved is Resolved for a row outside claims.
func (c *Core) resolved(s answer) (out Out) {
	m := s.Message
	switch {
	case s.Decision.Action == outbox.Delete:
		var next *outbox.Message
		c.mu.marks.written(m.Ref())
		if m.OrderingKey != nil {
			if c.mu.lease.late(c.mu.now) {
				c.leaveQueue(c.mu.keys.unqueue(*m.OrderingKey))
			}
			if next = c.mu.keys.confirmed(m); next != nil {
				next.TakenAt = c.mu.lease.owned
			}
		}
		return c.settling(s.Settlement, next)
	case s.Decision.Action != outbox.Release:
		if m.OrderingKey != nil {
			c.leaveQueue(c.mu.keys.stop(m))
		}
		return c.settling(s.Settlement, nil)
	}
	if s.outcome == outbox.Unknown {
		c.mu.marks.lostConfirm(m, c.limits.Unknown)
	}
	if m.OrderingKey != nil {
		c.leaveQueue(c.mu.keys.stop(m))
	}
	c.releaseStreamed(m)
	return Out{}
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

// releaseStreamed leaves a row unchanged in the table: its outcome is unknown, or it was not sent.
func (c *Core) releaseStreamed(m *outbox.Message) {
	c.forget(m.Ref(), m.Size())
	switch {
	case m.OrderingKey != nil:
		c.leaveInTable(m)
		c.mu.keys.released(m)
	case m.AvailableAt == nil:
		c.leaveInTable(m)
	default:
		c.wantAgain(candidate(m))
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
	c.mu.marks.written(m.Ref())
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
	c.mu.keys.yields(s.Message, true)
	if s.Message.OrderingKey != nil {
		c.mu.keys.released(s.Message)
	}
}
