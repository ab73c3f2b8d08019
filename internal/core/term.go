package core

import (
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// term is the time in which this relay leads, which means that it owns the slot.
type term struct {
	leader bool
	pid    uint32 // of the server process through which it owns the slot
	live   bool   // the stream was heard of lately
	epoch  int    // counts how often the slot was taken or lost
	// floor: streamed rows that committed before it may have been published (see registry.overflow).
	floor uint64
}

// lock must begin every method; it also sets the time of the method.
func (c *Core) lock() {
	c.mu.Lock()
	c.mu.now = c.Clock()
}

// Slot describes how a relay has taken the slot.
type Slot struct {
	// Boundary is the greatest id so far, of the rows and of the sequence.
	Boundary int64
	// PID is the server process of the stream.
	PID uint32
	// Start is the position at which the stream starts, WALEnd the end of the WAL after that.
	Start, WALEnd uint64
	// FreeSince is since when nobody owned the slot. For RestFor after it, rows that committed before Start are left alone.
	// Zero: this relay was the last owner.
	FreeSince time.Time
}

// TookSlot starts a term as the leader: all rows in the table are to be claimed. The previous leader may have published
// rows up to the boundary.
func (c *Core) TookSlot(s Slot) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.registry.streamStarts(s.Start, s.WALEnd)
	c.mu.term.floor = min(c.mu.term.floor, s.WALEnd)
	c.mu.term.leader, c.mu.term.pid, c.mu.lease = true, s.PID, takenOver(s.FreeSince)
	c.mu.marks.olderTermUpTo = s.Boundary
	c.mu.term.epoch++
	c.leaveQueue(c.mu.keys.unqueueAll())
	c.mu.unseen.end()
	c.mu.unseen.forget() // rows that committed before the start may not be visible yet
	c.mu.keys.newTerm(true, c.mu.unseen.seq)
	c.mu.backlog, c.mu.due = everything, true
	signal(c.Wake)
}

// LostSlot ends a term. Messages in flight continue; queued ones stay in the table.
func (c *Core) LostSlot() {
	c.lock()
	defer c.mu.Unlock()
	c.mu.term.leader, c.mu.term.live = false, false
	c.mu.marks.olderTermUpTo = allRows // the next leader may publish any row
	c.mu.term.epoch++
	c.leaveQueue(c.mu.keys.unqueueAll())
	c.mu.keys.newTerm(false, c.mu.unseen.seq)
	c.mu.unseen.end()
	c.mu.backlog = nothing
}

// StreamLive records whether the server was heard of lately.
func (c *Core) StreamLive(live bool) {
	c.lock()
	defer c.mu.Unlock()
	if c.mu.term.live == live {
		return
	}
	c.mu.term.live = live
	signal(c.Wake)
}

// Leads reports whether this relay owns the slot.
func (c *Core) Leads() bool {
	c.lock()
	defer c.mu.Unlock()
	return c.mu.term.leader
}

// View is a snapshot of the core's state, for planning sweeps.
type View struct {
	Leader, Live, Ready bool
	// Rest is how long a new leader still leaves older rows alone.
	Rest  time.Duration
	PID   uint32
	Epoch int
	// Backlog: a pass over keyless rows is needed. Due: a row has got a time. Unlisted: keys that are not remembered
	// may have rows. Wanted counts the keys to look up that have fresh rows, Yielding those whose head was rejected or
	// had a time, Again those whose last look-up has claimed nothing.
	Backlog, Due, Unlisted bool
	Wanted, Yielding       int
	Again                  int
	// Unseen: rows in the table belong to transactions that are not visible yet. Unnamed, if not 0: a snapshot must
	// name these transactions; pass the number to Saw.
	Unseen  bool
	Unnamed uint64
}

// View returns the current state.
func (c *Core) View() View {
	c.lock()
	defer c.mu.Unlock()
	u := &c.mu.unseen
	rest := c.mu.lease.rest(c.mu.now)
	return View{
		Leader: c.mu.term.leader, Rest: rest, Live: c.mu.term.live, Ready: c.publishing(), PID: c.mu.term.pid, Epoch: c.mu.term.epoch,
		Backlog: c.mu.backlog != nothing, Due: c.mu.due, Unlisted: c.mu.keys.unlisted,
		Wanted: len(c.mu.keys.wanted), Yielding: len(c.mu.keys.yielding), Again: len(c.mu.keys.again),
		Unseen: c.mu.term.leader && rest == 0 && (len(u.left) > 0 || len(u.named) > 0 || u.unnamed != 0), Unnamed: u.unnamed,
	}
}

// Keys counts the remembered ordering keys.
func (c *Core) Keys() int {
	c.lock()
	defer c.mu.Unlock()
	return len(c.mu.keys.byKey)
}

// Saw records a snapshot that was taken in this epoch; later queries see at least as much. Unnamed is the number of a
// View before the snapshot; if not 0, the snapshot names all transactions in progress.
func (c *Core) Saw(s outbox.Snapshot, epoch int, unnamed uint64) {
	c.lock()
	defer c.mu.Unlock()
	if epoch != c.mu.term.epoch {
		return // the snapshot may be of another server
	}
	if unnamed != 0 && unnamed == c.mu.unseen.unnamed {
		c.mu.unseen.name(s)
		c.wantBacklog(everything) // an earlier pass may have missed rows that became visible since
	}
	c.saw(s)
}

func (c *Core) saw(s outbox.Snapshot) {
	if from := c.mu.unseen.saw(s); from != nothing {
		c.wantBacklog(from)
	}
}

// BacklogBegan starts a pass over the keyless rows. Rows left from now on ask for another pass.
func (c *Core) BacklogBegan(epoch int) (from int64, ok bool) {
	c.lock()
	defer c.mu.Unlock()
	if epoch != c.mu.term.epoch {
		return 0, false
	}
	from, c.mu.backlog = c.mu.backlog, nothing
	return from, true
}

// BacklogFailed asks for the pass again.
func (c *Core) BacklogFailed(from int64) {
	c.lock()
	defer c.mu.Unlock()
	if c.mu.term.leader {
		c.wantBacklog(from)
	}
}

// DueBegan starts a sweep of due rows. Rows that get a time from now on ask for another sweep.
func (c *Core) DueBegan() {
	c.lock()
	defer c.mu.Unlock()
	c.mu.due = false
}

// KeysBegan starts a pass over all keys and returns its number.
func (c *Core) KeysBegan() (pass int) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.keys.pass++
	c.mu.keys.complete = false
	return c.mu.keys.pass
}
