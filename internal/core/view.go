package core

import "time"

// View is the core's state at one moment, for planning, metrics and tests.
type View struct {
	// Leader: this relay has the lock of the table. Live: its stream was heard of lately. Epoch counts how often the
	// lock was taken or lost.
	Leader, Live bool
	Epoch        int
	// Rest is how long a new leader still leaves older rows alone.
	Rest time.Duration
	// Ready: messages may leave. Suspended: they must not, since published rows cannot be deleted.
	Ready, Suspended bool

	// Backlog: a pass over keyless rows is needed. Due: a row has got a time. Unlisted: keys that are not remembered
	// may have rows.
	Backlog, Due, Unlisted bool
	// Wanted counts the keys to look up that have fresh rows, Yielding those whose head was rejected or had a time,
	// Again those whose last look-up has read nothing.
	Wanted, Yielding, Again int
	// Unseen: rows in the table belong to transactions that are not visible yet. ForgottenAt, if not 0: a snapshot must
	// name these transactions; pass the number to Saw.
	Unseen      bool
	ForgottenAt uint64

	// InFlight counts the messages in the window. Eased: it is at most half full.
	InFlight int
	Eased    bool
	// Lacking is how long rows have found no room, and none has left.
	Lacking time.Duration
	// Remembered counts the rows in the registry, Keys the ordering keys.
	Remembered, Keys int
}

// View returns the current state.
func (c *Core) View() View {
	c.lock()
	defer c.mu.Unlock()
	t, k, u, w := &c.mu.term, &c.mu.keys, &c.mu.unseen, &c.mu.window
	v := View{
		Leader: t.leader, Live: t.live, Epoch: t.epoch,
		Rest: c.mu.lease.rest(c.mu.now), Ready: c.publishing(), Suspended: c.mu.suspended,
		Backlog: c.mu.backlog != noID, Due: c.mu.due, Unlisted: k.unknownKeysMayWait,
		Wanted: len(k.calm) + len(k.wanted), Yielding: len(k.yielding), Again: len(k.again), ForgottenAt: u.forgottenAt,
		InFlight: w.messages, Eased: w.messages <= c.limits.Messages/2,
		Remembered: len(c.mu.registry), Keys: len(k.byKey),
	}
	if !w.lacking.IsZero() {
		v.Lacking = c.mu.now.Sub(w.lacking)
	}
	v.Unseen = v.Leader && v.Rest == 0 && (len(u.left) > 0 || len(u.inProgress) > 0 || u.forgottenAt != 0)
	return v
}
