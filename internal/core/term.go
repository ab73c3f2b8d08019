package core

import "time"

// term is the time in which this relay leads, which means that it owns the slot.
type term struct {
	leader bool
	pid    uint32 // of the server process through which it owns the slot
	live   bool   // the stream was heard of lately
	epoch  int    // counts how often the slot was taken or lost
	server int64  // the number of the server
	// floor: streamed rows that committed before it may have been published by claims. So they leave by claims.
	floor uint64
}

// Slot describes how a relay has taken the slot.
type Slot struct {
	// Boundary is the greatest id so far, of the rows and of the sequence.
	Boundary int64
	// PID is the server process of the stream.
	PID uint32
	// Server is the number of the server; a server that was restarted or replaced has another one.
	Server int64
	// Start is the position at which the stream starts, WALEnd the end of the WAL after that.
	Start, WALEnd uint64
	// FreeSince is since when nobody owned the slot. For RestFor after it, rows that committed before Start are left
	// alone. Zero: this relay was the last owner.
	FreeSince time.Time
}

// TookSlot starts a term as the leader: all rows in the table are to be claimed. The previous leader may have published
// rows up to the boundary.
func (c *Core) TookSlot(s Slot) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.registry.cut(s.WALEnd)
	c.mu.term.floor = min(c.mu.term.floor, s.WALEnd)
	c.mu.term.leader, c.mu.term.pid, c.mu.term.server, c.mu.lease = true, s.PID, s.Server, takenOver(s.FreeSince)
	c.mu.marks.olderTermUpTo = s.Boundary
	c.mu.term.epoch++
	c.leaveQueue(c.mu.keys.unqueueAll())
	c.mu.unseen.end()
	c.mu.unseen.forgetAll() // rows that committed before the start may not be visible yet
	c.mu.keys.newTerm(c.mu.unseen.seq)
	c.mu.backlog, c.mu.left, c.mu.due = anyID, nil, true
	c.Wake.Send()
}

// LostSlot ends a term. Messages in flight continue; queued ones stay in the table.
func (c *Core) LostSlot() {
	c.lock()
	defer c.mu.Unlock()
	c.mu.term.leader, c.mu.term.live = false, false
	c.mu.marks.olderTermUpTo = allRows // the next leader may publish any row
	c.mu.term.epoch++
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
