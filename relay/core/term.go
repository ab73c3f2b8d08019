package core

import (
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// term is the time for which this relay leads: it owns the slot.
type term struct {
	leader bool
	pid    uint32 // the server process by which it owns the slot
	// owned is when the slot was certainly this relay's last.
	owned time.Time
	live  bool // the stream was heard of lately
	epoch int  // counts the times that the slot was taken or lost
	// restUntil: until then the relay that led before may still publish what the stream has brought it, without a mark.
	restUntil time.Time
	// boundary: rows without a time of their own up to this id may have been published by another relay.
	boundary int64
	// floor: streamed rows that committed before may have been published (see registry.overflow).
	floor uint64
}

// LateAfter is how long after it owned the slot a relay publishes what the stream brings: another one may have taken over
// since. What is later waits until the database has been asked, or is left in the table.
const LateAfter = outbox.CertainFor / 2

// lock begins every method.
func (c *Core) lock() {
	c.mu.Lock()
	c.mu.now = c.Clock()
}

// Owned is told of a time at which the slot was certainly this relay's.
func (c *Core) Owned(at time.Time) {
	c.lock()
	defer c.mu.Unlock()
	if c.mu.term.leader && at.After(c.mu.term.owned) {
		c.mu.term.owned = at
		signal(c.Room)
	}
}

// Doubt has the database asked who owns the slot before more of the stream leaves: a query has found that it is not this
// relay.
func (c *Core) Doubt() {
	c.lock()
	defer c.mu.Unlock()
	c.mu.term.owned = time.Time{}
	signal(c.Doubted)
}

// late tells that another relay may have the slot by now.
func (c *Core) late() bool { return outbox.Elapsed(c.mu.term.owned, c.mu.now) > LateAfter }

// Slot is how a relay owns the slot.
type Slot struct {
	// Boundary is the newest id that was handed out before.
	Boundary int64
	// PID is of the server's process.
	PID uint32
	// Start is the position of the stream's start, WALEnd where the WAL ended afterwards.
	Start, WALEnd uint64
	// RestUntil is until when rows that committed before the start are left alone: the relay that owned the slot before may
	// still publish them, without a mark.
	RestUntil time.Time
}

// TookSlot starts a term as the leader: everything in the table is to be claimed, and what has an id up to the boundary
// may have been published by the leader before.
func (c *Core) TookSlot(s Slot) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.registry.streamStarts(s.Start, s.WALEnd)
	c.mu.term.floor = min(c.mu.term.floor, s.WALEnd)
	c.mu.term.boundary, c.mu.term.pid, c.mu.term.owned = s.Boundary, s.PID, time.Time{}
	c.mu.term.leader, c.mu.term.restUntil = true, s.RestUntil
	c.mu.term.epoch++
	c.leaveQueue(c.mu.keys.unqueueAll())
	c.mu.unseen.end()
	c.mu.unseen.forget() // what committed before the stream's start may not be visible yet
	c.mu.keys.newTerm(true, c.mu.unseen.seq)
	c.mu.backlog, c.mu.due = everything, true
	signal(c.Wake)
}

// LostSlot ends it. What is in flight goes on; what is queued is left in the table.
func (c *Core) LostSlot() {
	c.lock()
	defer c.mu.Unlock()
	c.mu.term.leader, c.mu.term.live = false, false
	c.mu.term.boundary = nothing // its next owner may publish any row
	c.mu.term.epoch++
	c.leaveQueue(c.mu.keys.unqueueAll())
	c.mu.keys.newTerm(false, c.mu.unseen.seq)
	c.mu.unseen.end()
	c.mu.backlog = nothing
}

// StreamLive is told whether the server was heard of lately.
func (c *Core) StreamLive(live bool) {
	c.lock()
	defer c.mu.Unlock()
	if c.mu.term.live == live {
		return
	}
	c.mu.term.live = live
	signal(c.Wake)
}

// Leads tells whether this relay owns the slot.
func (c *Core) Leads() bool {
	c.lock()
	defer c.mu.Unlock()
	return c.mu.term.leader
}

// SetBoundary is for relays that do not lead: rows beyond this id were published by nobody else.
func (c *Core) SetBoundary(id int64) {
	c.lock()
	defer c.mu.Unlock()
	if !c.mu.term.leader {
		c.mu.term.boundary = id
	}
}

// ServerRestarted is told that connections to the server were lost: it may have crashed, and rows up to the id have lost
// the trace of a claim.
func (c *Core) ServerRestarted(id int64) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.restarted = max(c.mu.restarted, id)
}

// View is how things stand, for who plans the sweeps.
type View struct {
	Leader, Live, Ready bool
	// Rest is how long a new leader still leaves alone what the table held before.
	Rest  time.Duration
	PID   uint32
	Epoch int
	// Backlog: rows without a key wait to be looked at. Due: a row has got a time of its own. Wanted: keys are to be
	// looked up. Unlisted: keys that are not remembered may have rows.
	Backlog, Due, Unlisted bool
	Wanted                 int
	// Unseen: transactions may become visible of which rows are in the table. Unnamed: if not 0, a snapshot has to name
	// them, and Saw is told this number.
	Unseen  bool
	Unnamed uint64
}

// View may be called at any time.
func (c *Core) View() View {
	c.lock()
	defer c.mu.Unlock()
	u := &c.mu.unseen
	rest := max(c.mu.term.restUntil.Sub(c.mu.now), 0)
	return View{
		Leader: c.mu.term.leader, Rest: rest, Live: c.mu.term.live, Ready: c.publishing(), PID: c.mu.term.pid, Epoch: c.mu.term.epoch,
		Backlog: c.mu.backlog != nothing, Due: c.mu.due, Wanted: len(c.mu.keys.wanted), Unlisted: c.mu.keys.unlisted,
		Unseen: c.mu.term.leader && rest == 0 && (len(u.left) > 0 || len(u.named) > 0 || u.unnamed != 0), Unnamed: u.unnamed,
	}
}

// Keys counts the ordering keys that are remembered.
func (c *Core) Keys() int {
	c.lock()
	defer c.mu.Unlock()
	return len(c.mu.keys.byKey)
}

// Saw takes a snapshot in that was asked for in this epoch, and that queries from now on see at least. If unnamed
// is not 0, it is that of the View before the snapshot, which names all that is in progress.
func (c *Core) Saw(s outbox.Snapshot, epoch int, unnamed uint64) {
	c.lock()
	defer c.mu.Unlock()
	if epoch != c.mu.term.epoch {
		return // it may be of another server
	}
	if unnamed != 0 && unnamed == c.mu.unseen.unnamed {
		c.mu.unseen.name(s)
		c.wantBacklog(everything) // a pass that began before may have missed what has become visible since
	}
	c.saw(s)
}

func (c *Core) saw(s outbox.Snapshot) {
	if from := c.mu.unseen.saw(s); from != nothing {
		c.wantBacklog(from)
	}
}

// BacklogBegan starts a pass over the rows without a key: what is left from now on asks for another.
func (c *Core) BacklogBegan(epoch int) (from int64, ok bool) {
	c.lock()
	defer c.mu.Unlock()
	if epoch != c.mu.term.epoch {
		return 0, false
	}
	from, c.mu.backlog = c.mu.backlog, nothing
	return from, true
}

// BacklogFailed has a pass done again.
func (c *Core) BacklogFailed(from int64) {
	c.lock()
	defer c.mu.Unlock()
	if c.mu.term.leader {
		c.wantBacklog(from)
	}
}

// DueBegan starts a sweep of due rows: what gets a time from now on asks for another.
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
	return c.mu.keys.pass
}

// KeysEnded ends a pass that read to the end; complete tells whether its first page could see all that had to be seen.
func (c *Core) KeysEnded(pass int, complete bool) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.keys.passed(pass)
	if complete && pass == c.mu.keys.pass {
		c.mu.keys.unlisted = false
	}
}

// SeesAllKeys tells whether a pass over all keys that begins with what was seen until now could miss no row of a key
// that is not remembered.
func (c *Core) SeesAllKeys() bool {
	c.lock()
	defer c.mu.Unlock()
	return c.mu.unseen.unnamed == 0 && c.mu.unseen.all(c.mu.keys.missed)
}
