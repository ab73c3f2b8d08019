package relay

import (
	"math"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// core decides what happens to each message, whoever brings it: published now,
// kept behind another, or left in the table. It does no I/O. The stream, the sweep,
// the publisher and the settler call it; what it returns to be published is handed
// to the publisher by the caller, after the lock.
type core struct {
	maxInFlight int
	maxBytes    int
	most        bounds
	// wake is signalled when a sweep may be wanted; the sweeper waits on it.
	wake chan struct{}
	// roomMade is signalled when the window has room again; the stream waits on it.
	roomMade chan struct{}
	// doubted is signalled when the relay may have lost the slot without hearing of it;
	// the streamer asks the database then.
	doubted chan struct{}
	// refused is signalled when the server takes no connections: it stops, or has stopped.
	refused chan struct{}
	// gaveUp is signalled when takeGivenUp has something; the settler waits on it.
	gaveUp chan struct{}
	counts *metrics
	// clock tells the time; tests turn it.
	clock func() time.Time

	mu struct {
		sync.Mutex
		// movedAt is when the core was last used. The streamer does so at least every
		// touchEvery while the relay holds the slot.
		movedAt time.Time

		registry registry
		gate     gate

		// messages and bytes are what the window holds: in flight, queued, or confirmed
		// and not yet settled.
		messages, bytes int
		// reservedMessages and reservedBytes are kept free for the sweep under way.
		reservedMessages, reservedBytes int
		// invisible counts rows that were published and cannot be settled until the
		// database shows them. They hold no payload and no place in the window.
		invisible int

		holder    bool   // this relay holds the slot, …
		pid       uint32 // … by this server process
		doubtful  bool   // it did, and then this process stood still for a while
		ready     bool   // the publisher takes messages
		stopping  bool   // nothing new is taken
		live      bool   // the stream was heard of lately
		spilling  bool   // streamed rows are left in the table until the window has emptied
		epoch     int    // counts the times that the slot was taken or lost
		leftovers bool   // rows without a key may be anywhere in the table
		// unseen are transactions whose rows the last pass could not see, if they have any: each
		// that was under way when the first pass of the term began. awaited: nothing else asks for a pass.
		unseen  map[uint32]struct{}
		awaited bool
		// unnamed: a pass has to see whatever was committed when it began, and to learn which
		// transactions are in unseen.
		unnamed bool
		// spilledFrom is the least id of the rows without a key that the stream has left in the table
		// since the last pass over those began; noSpill for none. left has the least id of each of their transactions,
		// until a pass could see them.
		spilledFrom int64
		left        map[uint32]int64
		// floor: streamed rows that committed before may have been published (see
		// registry.overflow) and are left to the sweep.
		floor uint64
		// resting are keys to be fetched again, each at its time, oldest first.
		resting []restingKey

		// givenUp are claimed rows that were queued behind their key and will not leave: they
		// are to be released, and stay in the window until then.
		givenUp []store.Settlement
		// lease is that of the newest claim.
		lease time.Duration
		// moved are keys of which the last claimed row in memory was settled, or which go on with a
		// row that a fetch must leave alone: a claim may find it. movedMany: there were too many to remember.
		moved     map[string]struct{}
		movedMany bool
		// dueMoved tells of a row that has a time of its own, since the last sweep for those.
		dueMoved bool
		// suspects are transactions that were under way when the last pass over the keys
		// began; rows of theirs may have been left unseen. Known after a first pass.
		suspects      map[uint32]struct{}
		suspectsKnown bool
		// slotFree: nobody holds the slot, as last heard; freeSince: since when so.
		slotFree  bool
		freeSince time.Time

		// boundary: rows with this id or a smaller one may have been published by
		// another relay before this one took the slot.
		boundary int64
		// newest is the greatest id of a row that was streamed, swept, or handed out before this relay took the slot.
		newest int64
		// unknown are rows whose confirm was lost; they may have been published.
		unknown map[outbox.Ref]struct{}
		// unknownMany: too many to remember, so every swept row may have been.
		unknownMany bool
	}
}

type restingKey struct {
	key string
	at  time.Time
}

const (
	// rest is how long a key waits for rows to become visible before it is looked at again.
	rest = 20 * time.Millisecond
	// byteBudget bounds the payloads in the window. One message is always let in.
	byteBudget = 32 << 20
)

// bounds keep the memory of a core within limits whatever happens (docs/architecture.md,
// invariant 5). Past each, exactness gives way to another look at the table.
type bounds struct {
	awaitingStream int // settled rows that the stream may still bring
	keys           int // ordering keys remembered
	left           int // transactions remembered for rows left in the table
	unknown        int // rows remembered as possibly published
	invisible      int // published rows that wait to become visible
}

func defaultBounds() bounds {
	return bounds{awaitingStream: 200_000, keys: 100_000, left: 10_000, unknown: 100_000, invisible: 100_000}
}

func newCore(maxInFlight int, most bounds, counts *metrics) *core {
	c := &core{
		maxInFlight: maxInFlight,
		maxBytes:    byteBudget,
		most:        most,
		wake:        make(chan struct{}, 1),
		roomMade:    make(chan struct{}, 1),
		doubted:     make(chan struct{}, 1),
		refused:     make(chan struct{}, 1),
		gaveUp:      make(chan struct{}, 1),
		counts:      counts,
		clock:       time.Now,
	}
	c.mu.registry = newRegistry(most.awaitingStream)
	c.mu.gate = newGate(most.keys)
	c.mu.gate.fetches = false // until it holds the slot
	c.mu.moved = make(map[string]struct{})
	c.mu.unknown = make(map[outbox.Ref]struct{})
	c.mu.unseen = make(map[uint32]struct{})
	c.mu.left = make(map[uint32]int64)
	c.mu.spilledFrom = noSpill
	return c
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// verdict is what the core says of a streamed row.
type verdict uint8

const (
	taken   verdict = iota + 1 // published, queued, known already, or rightly in the table
	noRoom                     // the window is full: wait for room, or spill
	spilled                    // left in the table, for the sweep
)

// streamed takes a row from the stream, and returns it where it is to be published
// now. With patient, a full window is reported; otherwise the row is spilled.
func (c *core) streamed(m *outbox.Message, commitLSN uint64, patient bool) (publish *outbox.Message, v verdict) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.newest = max(c.mu.newest, m.ID)
	switch standing := c.mu.registry.standing(m.Ref()); {
	case standing == unknown:
	case !c.mu.registry.sentBack(m.Ref(), commitLSN):
		return nil, taken // a sweep was quicker
	case standing == givenBack:
		c.mu.registry.noteBack(m.Ref())
		if m.OrderingKey != nil {
			c.leaveQueued(c.mu.gate.wait(m))
		}
		return nil, taken // its death is heard of soon
	}
	if c.mayBeKnownToBroker(m) {
		m.PossibleDuplicate = true
	}
	switch {
	case !m.AvailableAt.IsZero() || m.SchemaVersion > outbox.SchemaVersion:
		c.dueMoves()
		if m.OrderingKey != nil {
			c.leaveQueued(c.mu.gate.wait(m))
		}
		return nil, taken // the sweep brings it in time, or a newer relay does
	case c.mu.doubtful && patient:
		return nil, noRoom
	case c.mu.doubtful || commitLSN < c.mu.floor:
		return nil, c.spill(m)
	case c.mu.stopping || !c.mu.ready || c.mu.invisible >= c.most.invisible:
		return nil, c.spill(m)
	}
	if c.mu.spilling && c.mu.messages <= c.maxInFlight/2 {
		c.mu.spilling = false
	}
	room := c.room(m)
	if c.mu.spilling || (!room && !patient) {
		c.mu.spilling = true
		return nil, c.spill(m)
	}
	if !room {
		return nil, noRoom
	}
	if m.OrderingKey == nil {
		c.hold(m, 0)
		return m, taken
	}
	// Queued messages must not fill the window, or one hot key would hold up the others.
	switch c.mu.gate.streamed(m, c.mu.gate.queued < c.maxInFlight/2) {
	case publishNow:
		c.hold(m, 0)
		return m, taken
	case queued:
		c.hold(m, 0)
		return nil, taken
	}
	signal(c.wake)
	return nil, taken // its key goes by the table: nothing was given up
}

func (c *core) room(m *outbox.Message) bool {
	messages, bytes := c.mu.messages+c.mu.reservedMessages, c.mu.bytes+c.mu.reservedBytes
	return messages == 0 || (messages < c.maxInFlight && bytes+m.Size() <= c.maxBytes)
}

func (c *core) hold(m *outbox.Message, seenAt uint64) {
	m.TakenAt = c.mu.movedAt
	c.mu.newest = max(c.mu.newest, m.ID)
	c.mu.registry.hold(m.Ref(), seenAt)
	c.mu.messages++
	c.mu.bytes += m.Size()
}

// letGo gives the message's place in the window back.
func (c *core) letGo(m *outbox.Message) {
	c.mu.messages--
	c.mu.bytes -= m.Size()
	signal(c.roomMade)
	signal(c.wake)
}

func (c *core) spill(m *outbox.Message) verdict {
	c.counts.spilled.Inc()
	c.leave(m)
	return spilled
}

// leave notes that a row stays in the table and has to be swept.
func (c *core) leave(m *outbox.Message) {
	if m.OrderingKey != nil {
		c.mu.gate.left(*m.OrderingKey, m)
		signal(c.wake)
		return
	}
	if c.mu.spilledFrom == noSpill {
		signal(c.wake)
	}
	c.mu.spilledFrom = min(c.mu.spilledFrom, m.ID)
	least, known := c.mu.left[m.XID]
	switch {
	case m.XID == 0:
	case known:
		c.mu.left[m.XID] = min(least, m.ID)
	case len(c.mu.left) < c.most.left:
		c.mu.left[m.XID] = m.ID
	default:
		c.mu.unnamed = true
		c.leftover()
	}
}

// noSpill is greater than all ids.
const noSpill = math.MaxInt64

// leftover notes that rows without a key may be anywhere in the table.
func (c *core) leftover() {
	c.mu.awaited = false
	if !c.mu.leftovers {
		c.mu.leftovers = true
		signal(c.wake)
	}
}

// dueMoves notes that a row has got a time of its own.
func (c *core) dueMoves() {
	if !c.mu.dueMoved {
		c.mu.dueMoved = true
		signal(c.wake)
	}
}

// unread notes a streamed row that could not be decoded: a sweep tries it again, once it is visible.
func (c *core) unread() {
	c.lock()
	defer c.mu.Unlock()
	c.mu.unnamed = true
	c.leftover()
}

// passed is told how far the stream has come.
func (c *core) passed(position uint64) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.registry.streamPassed(position)
}

func (c *core) dropQueues() { c.leaveQueued(c.mu.gate.unqueue(c.mu.holder)) }

// leaveQueued gives up messages that were queued behind their key: their rows are in the
// table. Those that were claimed are released there, or they would wait for the end of their lease
// and be taken for repeats.
func (c *core) leaveQueued(behind []*outbox.Message) {
	for _, m := range behind {
		if m.AvailableAt.IsZero() {
			c.mu.registry.forget(m.Ref())
			c.letGo(m)
			continue
		}
		c.mu.registry.mark(m.Ref(), givenBack)
		c.mu.givenUp = append(c.mu.givenUp, store.Settlement{Message: m, Decision: store.Decision{Action: store.Release}})
	}
	if len(c.mu.givenUp) > 0 {
		signal(c.gaveUp)
	}
}

// takeGivenUp hands out the rows to be released, each once.
func (c *core) takeGivenUp() []store.Settlement {
	c.lock()
	defer c.mu.Unlock()
	givenUp := c.mu.givenUp
	c.mu.givenUp = nil
	return givenUp
}

// publisherReady is told whether the publisher takes messages.
func (c *core) publisherReady(ready bool) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.ready = ready
	signal(c.wake)
	signal(c.roomMade)
}

// stop ends the intake: from now on only what is in flight goes on.
func (c *core) stop() {
	c.lock()
	defer c.mu.Unlock()
	c.mu.stopping = true
	c.dropQueues()
	signal(c.roomMade)
}

// idle tells whether the window is empty.
func (c *core) idle() bool {
	c.lock()
	defer c.mu.Unlock()
	return c.mu.messages == 0 && c.mu.invisible == 0
}

// hasEased tells whether the window is at most half full.
func (c *core) hasEased() bool {
	c.lock()
	defer c.mu.Unlock()
	return c.mu.messages <= c.maxInFlight/2
}

// inFlight counts the messages in memory, and those published whose row is not
// visible yet.
func (c *core) inFlight() int {
	c.lock()
	defer c.mu.Unlock()
	return c.mu.messages + c.mu.invisible
}
