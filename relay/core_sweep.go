package relay

import (
	"math"
	"time"

	"github.com/cdc-relay/cdc-relay/fallback"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// view is how things stand, for the planner. Page is the room that a sweep wants.
func (c *core) view(page int) fallback.View {
	c.lock()
	defer c.mu.Unlock()
	v := fallback.View{
		Holder:         c.mu.holder,
		StreamLive:     c.mu.live,
		SlotFree:       c.mu.slotFree,
		PublisherReady: c.mu.ready,
		Room:           c.mu.messages+min(page, max(c.sweepShare()/4, 1)) <= c.sweepShare() && c.mu.bytes < c.maxBytes/2,
		Leftovers:      c.mu.leftovers,
		Spilled:        c.mu.spilledFrom != noSpill,
		Keys:           len(c.mu.gate.wanted) > 0,
		KeysFull:       len(c.mu.gate.wanted) > 4*page,
		Suspicious:     c.mu.gate.suspicious || !c.mu.live,
		DueMoved:       c.mu.dueMoved,
		Moved:          len(c.mu.moved) > 0,
	}
	if len(c.mu.resting) > 0 {
		v.Rested = c.mu.resting[0].at
	}
	return v
}

// resume wakes keys whose rest is over.
func (c *core) resume(now time.Time) {
	c.lock()
	defer c.mu.Unlock()
	for len(c.mu.resting) > 0 && !c.mu.resting[0].at.After(now) {
		c.mu.gate.resume(c.mu.resting[0].key)
		c.mu.resting = c.mu.resting[1:]
	}
}

// dueBegan: what moves from now on asks for another sweep.
func (c *core) dueBegan() {
	c.lock()
	defer c.mu.Unlock()
	c.mu.dueMoved = false
}

// sweep is one query under way. Until it ends, rows that are settled are remembered,
// since the query may return them, and its share of the window is kept free.
type sweep struct {
	core  *core
	limit store.Limit
	epoch int
	// pid is the server process by which this relay holds the slot.
	pid uint32
	// began is when the query was sent.
	began time.Time
	// held is how many messages it has brought, also those that wait behind others of their key.
	held int
}

// sweepShare is how much of the window sweeps may fill. What the stream finds no room for stands
// behind all that waits in the table: it has a quarter for itself, and once it has spilled,
// half until that is free.
func (c *core) sweepShare() int {
	switch {
	case !c.mu.holder || !c.mu.live:
		return c.maxInFlight
	case c.mu.spilling:
		return max(c.maxInFlight/2, 1)
	}
	return max(c.maxInFlight*3/4, 1)
}

// beginSweep reserves room for a page of at most so many rows.
func (c *core) beginSweep(page int) *sweep {
	c.lock()
	defer c.mu.Unlock()
	limit := store.Limit{
		Rows:  max(min(page, c.sweepShare()-c.mu.messages), 1),
		Bytes: max(min(c.maxBytes/4, c.maxBytes-c.mu.bytes), 1),
		// Queued messages must not fill the window, or hot keys would hold up the others.
		Run: max(min(mostQueuedPerKey, c.maxInFlight/2-c.mu.gate.queued), 1),
	}
	c.mu.reservedMessages, c.mu.reservedBytes = limit.Rows, limit.Bytes
	c.mu.registry.sweepBegan()
	return &sweep{core: c, limit: limit, epoch: c.mu.epoch, pid: c.mu.pid, began: c.mu.movedAt}
}

func (s *sweep) end() {
	c := s.core
	c.lock()
	defer c.mu.Unlock()
	c.mu.reservedMessages, c.mu.reservedBytes = 0, 0
	c.mu.registry.sweepEnded()
	signal(c.roomMade)
}

// leftovers takes a page of rows without a key and returns those to publish.
func (s *sweep) leftovers(page store.Page) (publish []*outbox.Message) {
	c := s.core
	c.lock()
	defer c.mu.Unlock()
	if !s.current() {
		return nil
	}
	for _, m := range page.Messages {
		if c.mu.registry.standing(m.Ref()) == unknown {
			c.holdSwept(m, page.Position)
			publish = append(publish, m)
		}
	}
	s.held += len(publish)
	return publish
}

// current tells whether this relay may still take unclaimed rows: it holds the slot
// as it did when the query began.
func (s *sweep) current() bool {
	return s.core.mu.holder && s.epoch == s.core.mu.epoch && !s.core.mu.stopping
}

func (c *core) holdSwept(m *outbox.Message, position uint64) {
	if m.ID <= c.mu.boundary || c.mayBeKnownToBroker(m) {
		m.PossibleDuplicate = true
	}
	c.hold(m, position)
}

// leftoversBegan starts a pass over the table: what is left from now on asks for another. With
// naming, the snapshot of its first page has to name all transactions that are under way.
func (c *core) leftoversBegan() (naming bool) {
	c.lock()
	defer c.mu.Unlock()
	naming = c.mu.unnamed
	c.mu.leftovers, c.mu.awaited, c.mu.unnamed = false, false, false
	return naming
}

// leftoversEnded ends a pass that read to the end. Its first page's snapshot says
// whether it could see all that it had to: where not, another is wanted.
func (s *sweep) leftoversEnded(first store.Snapshot, naming bool) {
	c := s.core
	c.lock()
	defer c.mu.Unlock()
	if !s.current() {
		return // it was a pass of an earlier term
	}
	dropFinished(c.mu.unseen, first)
	if naming {
		for _, xid := range first.InProgress() {
			c.mu.unseen[xid] = struct{}{}
		}
	}
	if len(c.mu.unseen) > 0 {
		c.mu.awaited = !c.mu.leftovers
		c.mu.leftovers = true
	}
}

func dropFinished[V any](xids map[uint32]V, seenBy store.Snapshot) {
	for xid := range xids {
		if seenBy.Finished(xid) {
			delete(xids, xid)
		}
	}
}

// spilledBegan starts a pass over the rows from an id on, which are those that the stream has left.
func (c *core) spilledBegan() (from int64) {
	c.lock()
	defer c.mu.Unlock()
	from, c.mu.spilledFrom = c.mu.spilledFrom, noSpill
	return from
}

// spilledEnded ends a pass that read to the end, as leftoversEnded does: what it could not see is
// read from there on.
func (s *sweep) spilledEnded(first store.Snapshot) {
	c := s.core
	c.lock()
	defer c.mu.Unlock()
	if !s.current() {
		return
	}
	dropFinished(c.mu.left, first)
	for _, id := range c.mu.left {
		c.mu.spilledFrom = min(c.mu.spilledFrom, id)
	}
}

// spilledFailed has a pass that began with from done again.
func (c *core) spilledFailed(from int64) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.spilledFrom = min(c.mu.spilledFrom, from)
}

// awaitsTransactions tells whether a pass makes sense only once one of some transactions has ended.
func (c *core) awaitsTransactions() bool {
	c.lock()
	defer c.mu.Unlock()
	return c.mu.live && c.mu.leftovers && c.mu.awaited
}

// hasEnded tells whether one of those has, by a snapshot that was taken since.
func (c *core) hasEnded(now store.Snapshot) bool {
	c.lock()
	defer c.mu.Unlock()
	for xid := range c.mu.unseen {
		if now.Finished(xid) {
			return true
		}
	}
	return len(c.mu.unseen) == 0
}

// leftoversFailed has a pass done again; naming is what leftoversBegan said of it.
func (c *core) leftoversFailed(naming bool) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.leftovers, c.mu.awaited = true, false
	c.mu.unnamed = c.mu.unnamed || naming
}

// keyPassBegan starts a pass over the keys; naming is as for leftoversBegan.
func (c *core) keyPassBegan() (naming bool) {
	c.lock()
	defer c.mu.Unlock()
	if c.mu.gate.overflowed { // the rows of a key that was not remembered may not be visible yet
		c.mu.suspectsKnown = false
	}
	c.mu.gate.overflowed = false
	return !c.mu.suspectsKnown
}

// headsFound takes a page of keys that have rows.
func (s *sweep) headsFound(heads []store.Head) {
	c := s.core
	c.lock()
	defer c.mu.Unlock()
	if !s.current() {
		return
	}
	for _, head := range heads {
		// A row in memory is there under a lease, or is about to go.
		inMemory := c.mu.registry.standing(head.Ref) != unknown
		c.mu.gate.found(head.Key, head.Ready || inMemory)
	}
}

// keyPassEnded ends a pass that read to the end. Which keys have rows is known once a
// pass has remembered them all, and could see what every transaction wrote that was
// under way at the pass before: a row that the stream left, or brought before it
// started, may have been invisible until then.
func (s *sweep) keyPassEnded(first store.Snapshot) {
	c := s.core
	c.lock()
	defer c.mu.Unlock()
	if !s.current() {
		return // it was a pass of an earlier term
	}
	if c.mu.gate.overflowed {
		c.mu.suspectsKnown = false
		return
	}
	if !c.mu.suspectsKnown {
		c.mu.suspectsKnown, c.mu.suspects = true, make(map[uint32]struct{})
		for _, xid := range first.InProgress() {
			c.mu.suspects[xid] = struct{}{}
		}
	}
	dropFinished(c.mu.suspects, first)
	if len(c.mu.suspects) == 0 {
		c.mu.gate.suspicious = false
	}
}

// began is told that the stream brings a transaction: it committed after the stream
// started, so none of its rows was missed.
func (c *core) began(xid uint32) {
	c.lock()
	defer c.mu.Unlock()
	delete(c.mu.suspects, xid)
	delete(c.mu.unseen, xid)
}

// fewRows are read of each key at least: to look a key up costs more than to read a few rows more.
const fewRows = 4

// takeKeys hands out keys to fetch and how many rows to read of each.
func (s *sweep) takeKeys() (keys []store.Place, limit store.Limit) {
	c := s.core
	c.lock()
	defer c.mu.Unlock()
	keys = c.mu.gate.take(max(s.limit.Rows/fewRows, 1), c.mu.newest)
	limit = s.limit
	limit.Rows = min(max(s.limit.Rows/max(len(keys), 1), 1), mostQueuedPerKey)
	return keys, limit
}

// keysFetched takes the answer and returns the messages to publish.
func (s *sweep) keysFetched(page store.KeyPage, now time.Time) (publish []*outbox.Message) {
	c := s.core
	c.lock()
	defer c.mu.Unlock()
	if !s.current() {
		return nil
	}
	for _, rows := range page.Keys {
		if !c.mu.gate.isAt(rows.Place) {
			c.mu.gate.notFetched(rows.Key)
			continue
		}
		f := c.fetchOf(rows, page)
		s.held += len(f.messages)
		m, rests := c.mu.gate.fetched(rows.Key, f)
		if f.waiting {
			c.keyMoved(rows.Key) // its next row may be due
		}
		if rests {
			c.mu.resting = append(c.mu.resting, restingKey{rows.Key, now.Add(rest)})
		}
		if m != nil {
			publish = append(publish, m)
		}
	}
	return publish
}

// fetchOf picks the rows that may follow what the key has in memory, up to the first
// that must not leave yet.
func (c *core) fetchOf(rows store.KeyRows, page store.KeyPage) fetch {
	f := fetch{more: rows.More, seen: page.Snapshot.Finished}
	for _, row := range rows.Rows {
		m := row.Message
		gone := c.mu.registry.goneMeanwhile(m.Ref())
		switch standing := c.mu.registry.standing(m.Ref()); {
		case standing == held || standing == confirmed || (standing == deleted && gone):
			f.read, f.readTo = true, m.ID
			continue // in memory already, or on its way out
		case standing == dead && gone: // or sent back already: the next fetch tells
			f.more = true
			return f
		case standing == givenBack || standing == kept || !row.Ready:
			f.waiting = true
			return f
		case c.mu.gate.mayBeSentBack(rows.Key, row):
			f.anewFor = row.WrittenBy
			return f
		case !row.Read:
			f.more = true
			return f
		}
		f.read, f.readTo = true, m.ID
		c.holdSwept(m, page.Position)
		f.messages = append(f.messages, m)
	}
	return f
}

// notFetched puts keys back after a failure.
func (c *core) notFetched(keys []store.Place) {
	c.lock()
	defer c.mu.Unlock()
	for _, one := range keys {
		c.mu.gate.notFetched(one.Key)
	}
}

// everything is the boundary where no row can be told from those published before.
const everything = math.MaxInt64

// setBoundary is for relays that do not hold the slot.
func (c *core) setBoundary(id int64) {
	c.lock()
	defer c.mu.Unlock()
	if !c.mu.holder {
		c.mu.boundary = id
	}
}
