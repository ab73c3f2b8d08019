package core

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/signal"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Core is the state that all goroutines of one relay share. Its methods may be called from any goroutine.
type Core struct {
	limits Limits
	policy Policy
	// Wake is signalled when a sweep may be needed, Room when the stream may continue. Doubted is signalled when the
	// leader must prove that it has the lock, Bodies when NextBody may return a row.
	Wake, Room, Doubted, Bodies signal.Signal
	// Clock returns the time, Random a number in [0, 1) for the time of a retry. Tests replace them.
	Clock  func() time.Time
	Random func() float64

	mu struct {
		sync.Mutex
		now      time.Time // when the current method began
		registry registry
		keys     keys
		window   window
		term     term
		lease    lease
		marks    marks
		unseen   unseen
		// backlog is the lowest id at which the next pass over keyless rows must start; nothing: no pass is needed.
		backlog int64
		// left are the newest keyless rows of small transactions that the stream has left in the table, the newest
		// last. Sweeps take them before older rows.
		left []int64
		// gone are the rows that have left the memory since a search began, which may still see them; nil: none runs.
		gone map[outbox.Ref]struct{}
		// streaming is the transaction whose rows the stream brings.
		streaming transaction
		// due: since the last sweep of due rows, a row has got a time. dueAgain are some of these rows without a key,
		// if their time has come.
		due       bool
		dueAgain  []int64
		large     large
		ready     bool // the publisher takes messages
		suspended bool // publish nothing: published rows cannot be deleted
		stopping  bool // take no new rows
	}
}

// noID is above all ids, anyID below all ids.
const (
	noID  = math.MaxInt64
	anyID = math.MinInt64
)

// Limits bound the memory of a core. Beyond a limit, the core reads the table again instead of remembering.
type Limits struct {
	Messages, Bytes int // in the window
	Keys            int // remembered ordering keys
	Unseen          int // remembered transactions
}

// DefaultLimits returns the limits for a window of this many messages.
func DefaultLimits(messages int) Limits {
	return Limits{
		Messages: messages, Bytes: 32 << 20, Keys: 150_000, Unseen: 100_000,
	}
}

// window counts the messages in memory: in flight, queued, or confirmed and not yet settled.
type window struct {
	messages, bytes int
	// swept are the messages that sweeps have read.
	swept int
	// full: streamed rows stay in the table until the window is half empty.
	full bool
	// lacking is since when rows have found no room and none has left; zero: there was room.
	lacking time.Time
}

// transaction counts the rows of a transaction. It is large from some row on: its rows must not delay those of others.
type transaction struct {
	xid  uint32
	rows int
}

// New returns the core of a relay that does not lead.
func New(limits Limits, policy Policy) *Core {
	c := &Core{
		limits: limits, policy: policy, Clock: time.Now, Random: rand.Float64,
		Wake: signal.New(), Room: signal.New(), Doubted: signal.New(), Bodies: signal.New(),
	}
	c.mu.registry = make(registry)
	c.mu.keys = newKeys(limits.Keys)
	c.mu.unseen = unseen{limit: limits.Unseen, inProgress: make(map[uint32]struct{})}
	c.mu.backlog = noID
	return c
}

// lock must begin every method; it also sets the time of the method.
func (c *Core) lock() {
	c.mu.Lock()
	c.mu.now = c.Clock()
}

// large are rows with large bodies. One of them is in memory beside the bytes of the window, because its body may take
// long to read and to send: other rows leave meanwhile.
type large struct {
	row *outbox.Ref // nil: none
	// line are swept rows whose bodies are not read yet. more: rows for which the line was too long wait in the table.
	line []*outbox.Message
	more bool
}

// Out is what the caller must do after an event, outside the core's lock.
type Out struct {
	// Publish are messages to pass to the publisher. Each is reported to Resolved later.
	Publish []*outbox.Message
	// Swept counts the rows that a sweep has read and the core has taken.
	Swept int
	// Settle are rows to delete or update. Each is reported to Settled or SetAside later.
	Settle []outbox.Settlement
	// Soon: other rows with the keys of these rows wait in the table until they are settled.
	Soon bool
}

// publish returns the Out for a message, or for none.
func publish(m *outbox.Message) (out Out) {
	if m != nil {
		out.Publish = []*outbox.Message{m}
	}
	return out
}

// Verdict is the core's decision about a streamed row.
type Verdict uint8

const (
	Taken  Verdict = iota + 1 // published, queued, already known, or left for a sweep as intended
	NoRoom                    // window full or row late: wait, or leave the row in the table
	Left                      // left in the table: no room or no publisher
)

// Streamed takes a row from the stream. If mayWait is set, a full window gives NoRoom, unless the row's transaction is
// large; otherwise the row stays in the table.
func (c *Core) Streamed(m *outbox.Message, commitLSN uint64, mayWait bool) (Out, Verdict) {
	c.lock()
	defer c.mu.Unlock()
	m.Server = c.mu.term.server
	if m.XID != c.mu.streaming.xid {
		c.mu.streaming = transaction{xid: m.XID}
	}
	large := c.mu.streaming.rows >= max(c.limits.Messages/64, 1)
	out, v := c.streamed(m, commitLSN, mayWait, large)
	if v != NoRoom {
		c.mu.streaming.rows++
	}
	if v == Left && !large && m.OrderingKey == nil {
		if most := max(c.limits.Messages/4, 1); len(c.mu.left) >= 2*most {
			c.mu.left = slices.Delete(c.mu.left, 0, most)
		}
		c.mu.left = append(c.mu.left, m.ID)
	}
	return out, v
}

func (c *Core) streamed(m *outbox.Message, commitLSN uint64, mayWait, large bool) (Out, Verdict) {
	switch {
	case m.AvailableAt != nil || m.SchemaVersion > outbox.SchemaVersion:
		c.leaveScheduled(m)
		return Out{}, Taken
	case c.mu.registry.holds(m.Ref()):
		return Out{}, Taken // a sweep took it first
	case commitLSN < c.mu.term.floor || !c.publishing() || m.Unread > 0:
		c.leaveInTable(m)
		return Out{}, Left
	case c.late():
		if mayWait && !large {
			return Out{}, NoRoom
		}
		c.leaveInTable(m)
		return Out{}, Left
	}
	if c.mu.window.full && c.mu.window.messages <= c.limits.Messages/2 {
		c.mu.window.full = false
	}
	switch room := c.hasRoom(m, large); {
	case !room && !large && mayWait && !c.mu.window.full:
		return Out{}, NoRoom
	case !room || c.mu.window.full:
		c.mu.window.full = c.mu.window.full || !large
		c.leaveInTable(m)
		return Out{}, Left
	}
	return publish(c.direct(m)), Taken
}

// direct takes a row that may leave without a look at the table, unless its key has rows there.
func (c *Core) direct(m *outbox.Message) (now *outbox.Message) {
	if m.OrderingKey == nil {
		c.hold(m, 0)
		return m
	}
	// Queued messages must not fill the window, or one hot key would block the others.
	switch c.mu.keys.streamed(m, c.mu.keys.queued < c.limits.Messages/2) {
	case goes:
		c.hold(m, 0)
		return m
	case queues:
		c.hold(m, 0)
	case waits: // not counted as Left: a sweep reads the rows of the key
		c.leaveInTable(m)
	}
	return nil
}

// hasRoom reports whether a row may leave. Streamed rows of large transactions leave a quarter of the window to others.
func (c *Core) hasRoom(m *outbox.Message, large bool) bool {
	w, messages, bytes := &c.mu.window, c.limits.Messages, c.limits.Bytes
	if large {
		messages, bytes = messages*3/4, bytes*3/4
	}
	fits := w.bytes+m.Size() <= bytes || c.isLarge(m) && c.mu.large.row == nil
	if w.messages == 0 || w.messages < messages && fits {
		return true
	}
	w.lacks(c.mu.now)
	return false
}

// isLarge reports whether a message is larger than the rows that a sweep reads together.
func (c *Core) isLarge(m *outbox.Message) bool { return m.Size() > c.limits.Bytes/4 }

func (w *window) lacks(now time.Time) {
	if w.lacking.IsZero() {
		w.lacking = now
	}
}

// hold takes a row into memory. SeenAt is that of the registry.
func (c *Core) hold(m *outbox.Message, seenAt uint64) {
	m.TakenAt = c.mu.lease.owned
	c.mu.registry[m.Ref()] = registered{seenAt: seenAt}
	c.mu.window.messages++
	if c.isLarge(m) && c.mu.large.row == nil {
		ref := m.Ref()
		c.mu.large.row = &ref
		return
	}
	c.mu.window.bytes += m.Size()
}

// forget removes a row from memory: it was deleted or updated, or waits in the table. The stream may still bring a row
// that a sweep has seen, so the floor rises to the position of that sweep.
func (c *Core) forget(ref outbox.Ref, size int) {
	row := c.mu.registry.release(ref)
	if c.mu.gone != nil {
		c.mu.gone[ref] = struct{}{}
	}
	if row.unchangeable {
		return // it has left the window
	}
	c.mu.term.floor = max(c.mu.term.floor, row.seenAt)
	c.mu.window.messages--
	if row.seenAt != 0 {
		c.mu.window.swept--
	}
	c.mu.window.lacking = time.Time{}
	if c.mu.large.row != nil && *c.mu.large.row == ref {
		c.endLarge()
	} else {
		c.mu.window.bytes -= size
	}
	c.Room.Send()
	c.Wake.Send()
}

// leaveInTable records that a streamed row stays in the table, for a sweep.
func (c *Core) leaveInTable(m *outbox.Message) {
	if m.OrderingKey == nil {
		c.noteUnseen(m, passFrom(m.ID))
		c.wantBacklog(passFrom(m.ID))
		return
	}
	if c.mu.keys.leaveInTable(*m.OrderingKey, c.noteUnseen(m, noID)) {
		c.Wake.Send()
	}
}

// leaveScheduled leaves a row that has a time, needs a newer relay, or was requeued from the dead letters. Its id may
// be lower than those queued for its key. So the queue stays in the table too, and follows the row from there.
func (c *Core) leaveScheduled(m *outbox.Message) {
	c.wantDue()
	if m.AvailableAt != nil && m.OrderingKey == nil && !m.AvailableAt.After(m.CommittedAt) {
		c.wantAgain(m)
	}
	if m.OrderingKey != nil {
		c.leaveQueue(c.mu.keys.unqueue(*m.OrderingKey))
		c.leaveInTable(m)
	}
}

// leaveQueue leaves queued rows in the table.
func (c *Core) leaveQueue(queue []*outbox.Message) {
	for _, m := range queue {
		c.forget(m.Ref(), m.Size())
		c.leaveInTable(m)
	}
}

// noteUnseen records the transaction of a row, which queries may not see yet. Once they do, the backlog is read from
// this id. A transaction of an earlier server is visible or lost.
func (c *Core) noteUnseen(m *outbox.Message, id int64) (seq uint64) {
	if m.Server != c.mu.term.server || c.mu.unseen.note(m.XID, id) {
		return c.mu.unseen.seq
	}
	// Too many to remember. A later snapshot names the transactions in progress, and a sweep reads the whole table.
	c.mu.unseen.forgetAll()
	c.wantAll()
	return c.mu.unseen.seq
}

// wantAll asks for passes over the whole table.
func (c *Core) wantAll() {
	c.wantBacklog(anyID)
	c.mu.keys.miss(c.mu.unseen.seq)
}

func (c *Core) wantBacklog(from int64) {
	if c.mu.backlog == noID {
		c.Wake.Send()
	}
	c.mu.backlog = min(c.mu.backlog, from)
}

// passFrom returns where a pass must start to see the row with this id. The greatest id stands for nothing.
func passFrom(id int64) int64 { return min(id, noID-1) }

// mostAgain bounds the due rows to read again. The next pass over all due rows finds the others.
const mostAgain = 1000

// wantAgain asks for a due row without a key.
func (c *Core) wantAgain(m *outbox.Message) {
	if c.wantDue(); len(c.mu.dueAgain) < mostAgain {
		c.mu.dueAgain = append(c.mu.dueAgain, m.ID)
	}
}

func (c *Core) wantDue() {
	if !c.mu.due {
		c.mu.due = true
		c.Wake.Send()
	}
}

// Unread records a streamed row that could not be decoded. Its key and transaction are unknown.
func (c *Core) Unread() {
	c.lock()
	defer c.mu.Unlock()
	c.mu.unseen.forgetAll()
	c.wantAll()
}

// PublisherReady records whether the publisher takes messages.
func (c *Core) PublisherReady(ready bool) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.ready = ready
	c.Wake.Send()
	c.Room.Send()
	c.Bodies.Send()
}

// publishing reports whether new messages may leave.
func (c *Core) publishing() bool { return c.mu.ready && !c.mu.stopping && !c.mu.suspended }

// Suspend records whether published rows cannot be deleted, and reports whether that is new. While this is so, nothing
// new is published.
func (c *Core) Suspend(suspended bool) (changed bool) {
	c.lock()
	defer c.mu.Unlock()
	if c.mu.suspended == suspended {
		return false
	}
	if c.mu.suspended = suspended; suspended {
		c.leaveQueue(c.mu.keys.unqueueAll())
	}
	c.Wake.Send()
	c.Room.Send()
	c.Bodies.Send()
	return true
}

// Stop ends the intake. Only messages in flight continue.
func (c *Core) Stop() {
	c.lock()
	defer c.mu.Unlock()
	c.mu.stopping = true
	c.leaveBodies()
	c.leaveQueue(c.mu.keys.unqueueAll())
	c.Room.Send()
}
