// Package core decides what happens to each message, from stream and sweep: published now, queued behind another of its
// ordering key, or left in the table. It does no I/O. The stream, the claims, the publisher and the settler call it;
// what it returns to be published is handed to the publisher by the caller, after the lock.
package core

import (
	"math"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Core is the state that all actors of one relay share. Its methods may be called from any goroutine.
type Core struct {
	limits Limits
	// Wake is signalled when a sweep may be wanted, Room when the stream may go on, Doubted when the database is to be
	// asked who owns the slot.
	Wake, Room, Doubted chan struct{}
	// Clock tells the time; tests turn it.
	Clock func() time.Time

	mu struct {
		sync.Mutex
		now      time.Time // when the method under way began
		registry registry
		keys     keys
		window   window
		term     term
		unseen   unseen
		// backlog is the least id of the rows without a key that a pass has to look at; nothing for none.
		backlog int64
		// due: a row has got a time of its own since the last sweep for those.
		due bool
		// unknown are streamed rows whose confirm was lost.
		unknown unknown
		// restarted: rows up to this id may have lost the trace of a claim in a crash of the server.
		restarted int64
		ready     bool // the publisher takes messages
		suspended bool // nothing new is published, since what was published cannot be deleted
		stopping  bool // nothing new is taken
	}
}

// nothing is greater than all ids, everything smaller.
const (
	nothing    = math.MaxInt64
	everything = math.MinInt64
)

// Limits bound the memory of a core. Past each, exactness gives way to another look at the table.
type Limits struct {
	Messages, Bytes int // in the window
	AwaitStream     int // settled rows that the stream may still bring; 0: there is no stream
	Keys            int // ordering keys remembered
	Unseen          int // transactions remembered
	Unknown         int // rows remembered as possibly published
	Invisible       int // published rows that wait to become visible
}

// DefaultLimits are those of a relay with so many messages in flight.
func DefaultLimits(messages int) Limits {
	return Limits{Messages: messages, Bytes: 32 << 20, AwaitStream: 200_000, Keys: 150_000, Unseen: 100_000, Unknown: 100_000, Invisible: 100_000}
}

// window is what is held in memory: in flight, queued, or confirmed and not yet settled.
type window struct {
	messages, bytes int
	// invisible counts rows that were published and cannot be settled until the database shows them.
	invisible int
	// full: streamed rows are left in the table until the window is half empty.
	full bool
}

// unknown are rows that may have been published by this process; many: too many to remember, so any may.
type unknown struct {
	rows map[outbox.Ref]struct{}
	many bool
}

// New makes a core of a relay that does not lead.
func New(limits Limits) *Core {
	c := &Core{
		limits: limits, Clock: time.Now,
		Wake: make(chan struct{}, 1), Room: make(chan struct{}, 1), Doubted: make(chan struct{}, 1),
	}
	c.mu.registry = newRegistry(limits.AwaitStream)
	c.mu.keys = newKeys(limits.Keys)
	c.mu.unseen = unseen{limit: limits.Unseen, named: make(map[uint32]struct{})}
	c.mu.unknown.rows = make(map[outbox.Ref]struct{})
	c.mu.backlog, c.mu.restarted = nothing, everything
	c.mu.term.boundary = nothing // any row may have been published by somebody else
	return c
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Verdict is what the core says of a streamed row.
type Verdict uint8

// The verdicts.
const (
	Taken  Verdict = iota + 1 // published, queued, known already, or rightly in the table
	NoRoom                    // the window is full, or the row is late: wait, or leave the row in the table
	Left                      // left in the table, since there is no room or no publisher
)

// Streamed takes a row from the stream, and returns it if it is to be published now. With mayWait, a full window is
// reported; otherwise the row is left in the table.
func (c *Core) Streamed(m *outbox.Message, commitLSN uint64, mayWait bool) (publish *outbox.Message, v Verdict) {
	c.lock()
	defer c.mu.Unlock()
	switch {
	case !m.AvailableAt.IsZero() || m.SchemaVersion > outbox.SchemaVersion:
		c.leaveScheduled(m)
		return nil, Taken
	case c.mu.registry.knows(m.Ref(), commitLSN):
		return nil, Taken // a claim was quicker
	case commitLSN < c.mu.term.floor || !c.publishing() || c.mu.window.invisible >= c.limits.Invisible:
		c.leave(m)
		return nil, Left
	case c.late():
		signal(c.Doubted)
		if mayWait {
			return nil, NoRoom
		}
		c.leave(m)
		return nil, Left
	}
	if c.mu.window.full && c.mu.window.messages <= c.limits.Messages/2 {
		c.mu.window.full = false
	}
	room := c.hasRoom(m)
	if c.mu.window.full || (!room && !mayWait) {
		c.mu.window.full = true
		c.leave(m)
		return nil, Left
	}
	if !room {
		return nil, NoRoom
	}
	return c.direct(m), Taken
}

// direct takes a row in that may be published without a look at the table, unless its key waits there.
func (c *Core) direct(m *outbox.Message) (publish *outbox.Message) {
	if _, found := c.mu.unknown.rows[m.Ref()]; found || c.mu.unknown.many {
		m.PossibleDuplicate = true
	}
	if m.OrderingKey == nil {
		c.hold(m)
		return m
	}
	// Queued messages must not fill the window, or one hot key would hold up the others.
	switch c.mu.keys.streamed(m, c.mu.keys.queued < c.limits.Messages/2) {
	case goes:
		c.hold(m)
		return m
	case queues:
		c.hold(m)
	case waits: // nothing was given up: its key goes by the table
		c.leave(m)
	}
	return nil
}

func (c *Core) hasRoom(m *outbox.Message) bool {
	w := &c.mu.window
	return w.messages == 0 || (w.messages < c.limits.Messages && w.bytes+m.Size() <= c.limits.Bytes)
}

func (c *Core) hold(m *outbox.Message) {
	m.TakenAt = c.mu.term.owned
	c.mu.registry.hold(m.Ref(), 0, nil)
	c.mu.window.messages++
	c.mu.window.bytes += m.Size()
}

// letGo gives a place in the window back.
func (c *Core) letGo(size int) {
	c.mu.window.messages--
	c.mu.window.bytes -= size
	signal(c.Room)
	signal(c.Wake)
}

// leave notes that a streamed row stays in the table, for a claim.
func (c *Core) leave(m *outbox.Message) {
	if m.OrderingKey == nil {
		c.noteUnseen(m.XID, m.ID)
		c.wantBacklog(m.ID)
		return
	}
	if c.mu.keys.leave(*m.OrderingKey, c.noteUnseen(m.XID, nothing)) {
		signal(c.Wake)
	}
}

// leaveScheduled is leave for a row that waits for its time or a newer relay, or was sent back from the dead letters.
// It may come before what is queued of its key: that is left as well, and follows it from the table.
func (c *Core) leaveScheduled(m *outbox.Message) {
	c.wantDue()
	if m.OrderingKey != nil {
		c.leaveQueue(c.mu.keys.unqueue(*m.OrderingKey))
		c.leave(m)
	}
}

// leaveQueue leaves rows in the table that were queued behind their key.
func (c *Core) leaveQueue(queue []*outbox.Message) {
	for _, m := range queue {
		c.mu.registry.forget(m.Ref())
		c.letGo(m.Size())
		c.leave(m)
	}
}

// noteUnseen notes a transaction whose rows no query may have seen yet. The backlog is to be read from the id on once
// they are visible.
func (c *Core) noteUnseen(xid uint32, id int64) (seq uint64) {
	if c.mu.unseen.note(xid, id) {
		return c.mu.unseen.seq
	}
	// Too many to remember: the snapshot of a later query names them, and all that is in the table is looked at.
	c.mu.unseen.forget()
	c.wantAll()
	return c.mu.unseen.seq
}

// wantAll asks for passes over the whole table.
func (c *Core) wantAll() {
	c.wantBacklog(everything)
	c.mu.keys.miss(c.mu.unseen.seq)
}

func (c *Core) wantBacklog(from int64) {
	if c.mu.backlog == nothing {
		signal(c.Wake)
	}
	c.mu.backlog = min(c.mu.backlog, from)
}

func (c *Core) wantDue() {
	if !c.mu.due {
		c.mu.due = true
		signal(c.Wake)
	}
}

// Unread notes a streamed row that could not be decoded, of an unknown key and transaction.
func (c *Core) Unread() {
	c.lock()
	defer c.mu.Unlock()
	c.mu.unseen.forget()
	c.wantAll()
}

// Began is told that the stream brings a transaction, and so that none of its rows is missed.
func (c *Core) Began(xid uint32) {
	c.lock()
	defer c.mu.Unlock()
	delete(c.mu.unseen.named, xid)
}

// Passed is told how far the stream has come.
func (c *Core) Passed(position uint64) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.registry.streamPassed(position)
}

// PublisherReady is told whether the publisher takes messages.
func (c *Core) PublisherReady(ready bool) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.ready = ready
	signal(c.Wake)
	signal(c.Room)
}

// publishing tells whether new messages may leave.
func (c *Core) publishing() bool { return c.mu.ready && !c.mu.stopping && !c.mu.suspended }

// Suspend is told whether rows cannot be deleted after their message was published: until they can, nothing new leaves.
func (c *Core) Suspend(suspended bool) {
	c.lock()
	defer c.mu.Unlock()
	if c.mu.suspended = suspended; suspended {
		c.leaveQueue(c.mu.keys.unqueueAll())
	}
	signal(c.Wake)
	signal(c.Room)
}

// Stop ends the intake: from now on only what is in flight goes on.
func (c *Core) Stop() {
	c.lock()
	defer c.mu.Unlock()
	c.mu.stopping = true
	c.leaveQueue(c.mu.keys.unqueueAll())
	signal(c.Room)
}

// Idle tells whether the window is empty.
func (c *Core) Idle() bool { return c.InFlight() == 0 }

// HasEased tells whether the window is at most half full.
func (c *Core) HasEased() bool {
	c.lock()
	defer c.mu.Unlock()
	return c.mu.window.messages <= c.limits.Messages/2
}

// InFlight counts the messages in memory, and those published whose row is not visible yet.
func (c *Core) InFlight() int {
	c.lock()
	defer c.mu.Unlock()
	return c.mu.window.messages + c.mu.window.invisible
}

// Remembered counts the rows in the registry.
func (c *Core) Remembered() int {
	c.lock()
	defer c.mu.Unlock()
	return len(c.mu.registry.rows)
}
