package core

import "time"

// term is the time in which this relay leads: it has the lock of the table.
type term struct {
	leader bool
	live   bool // the stream was heard of lately
	epoch  int  // counts how often the lock was taken or lost
	began  time.Time
	server int64 // the number of the server
	// floor: streamed rows that committed before it may have been published by sweeps. So they leave by sweeps.
	floor uint64
}

// Lead describes how this relay has become the leader.
type Lead struct {
	// Older is the greatest id so far, of the rows and of the sequence: a leader before it may have published rows up
	// to it.
	Older int64
	// Server is the number of the server; a server that was restarted or replaced has another one.
	Server int64
	// Free is when the lock was free. For RestFor after it, older rows are left alone. Zero: nothing of a
	// leader before is on its way.
	Free time.Time
}

// BeginTerm starts a term as the leader: all rows in the table are to be swept. Any term before it has ended.
func (c *Core) BeginTerm(l Lead) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.term.leader, c.mu.term.server, c.mu.lease = true, l.Server, takenOver(l.Free)
	c.mu.marks.older = l.Older
	c.mu.term.epoch++
	c.mu.term.began = c.mu.now
	c.mu.unseen.forgetAll() // rows that committed before the term may not be visible yet
	c.mu.backlog, c.mu.left, c.mu.due, c.mu.dueAgain = anyID, nil, true, nil
	c.Wake.Send()
}

// EndTerm ends a term. Messages in flight continue; queued ones stay in the table.
func (c *Core) EndTerm() {
	c.lock()
	defer c.mu.Unlock()
	c.mu.term.leader, c.mu.term.live = false, false
	c.mu.term.epoch++
	c.leaveBodies()
	c.leaveQueue(c.mu.keys.unqueueAll())
	c.mu.keys.newTerm(c.mu.unseen.seq)
	c.mu.unseen.end()
	c.mu.backlog, c.mu.left = noID, nil
}

// StreamLive records whether the server was heard of lately.
func (c *Core) StreamLive(live bool) {
	c.lock()
	defer c.mu.Unlock()
	if c.mu.term.live == live {
		return
	}
	c.mu.term.live = live
	c.Wake.Send()
}

// StreamBegan begins a stream: what committed before its start is swept. WALEnd is the end of the WAL after that. The
// number of the server may be new before the term ends.
func (c *Core) StreamBegan(walEnd uint64, server int64) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.term.server = server
	c.mu.registry.cut(walEnd)
	c.mu.term.floor = min(c.mu.term.floor, walEnd)
	c.mu.unseen.forgetAll() // rows that committed before the start may not be visible yet
	c.wantAll()
}

// StreamEnded ends a stream. Queued messages stay in the table.
func (c *Core) StreamEnded() {
	c.lock()
	defer c.mu.Unlock()
	c.mu.term.live = false
	c.leaveQueue(c.mu.keys.unqueueAll())
	c.mu.left = nil
	c.wantAll()
}
