package relay

import (
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// A term is the time for which this relay holds the slot.

// stillAfter is how long the process must have stood still for the relay to ask whether
// it still holds the slot.
const stillAfter = time.Second

// lock begins every method. A process that stood still (SIGSTOP, a machine that was
// paused, no CPU) may have lost the slot unheard, and whatever it read before may have
// been published by another relay since. Who comes first afterwards ends the term here,
// before anything of that leaves.
func (c *core) lock() {
	c.mu.Lock()
	now := c.clock()
	if elapsed(c.mu.movedAt, now) > stillAfter {
		c.doubtTerm()
	}
	c.mu.movedAt = now
}

// doubt ends the term until the database has said who holds the slot: after a silence of
// the stream, in which another relay may have taken over, or where a query has found that
// this one holds it no more.
func (c *core) doubt() {
	c.lock()
	defer c.mu.Unlock()
	c.doubtTerm()
}

func (c *core) doubtTerm() {
	if c.mu.holder {
		c.endTerm()
		c.mu.doubtful = true
		signal(c.doubted)
	}
}

// elapsed is the time between two readings, by the wall clock where that says more:
// the monotonic one may stand still with the machine.
func elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// holding is how a relay holds the slot.
type holding struct {
	// boundary is the newest id that was handed out before.
	boundary int64
	// pid is of the server's process.
	pid uint32
	// start is the position of the stream's start, walEnd where the WAL ended afterwards.
	start, walEnd uint64
}

// tookSlot starts a term as the holder: everything in the table is to be swept, and
// what has an id up to the boundary may have been published by the holder before.
func (c *core) tookSlot(h holding) {
	c.lock()
	defer c.mu.Unlock()
	c.beginTerm()
	c.mu.registry.streamStarts(h.start, h.walEnd)
	c.mu.floor = min(c.mu.floor, h.walEnd)
	c.mu.boundary, c.mu.pid = h.boundary, h.pid
	c.mu.newest = max(c.mu.newest, h.boundary)
	c.mu.slotFree = false
}

func (c *core) beginTerm() {
	// unnamed: what committed before the stream's start may not be visible yet.
	c.mu.holder, c.mu.leftovers, c.mu.unnamed, c.mu.awaited = true, true, true, false
	c.mu.spilledFrom = noSpill // that pass sees what was left before, or learns of it
	clear(c.mu.left)
	clear(c.mu.unseen)
	c.dropQueues() // what was noted since the last term ended
	c.mu.dueMoved = true
	c.mu.epoch++
	c.mu.gate.suspicious, c.mu.gate.overflowed = true, true
	c.mu.suspectsKnown, c.mu.suspects = false, nil
	signal(c.wake)
}

// lostSlot ends it. What is in flight goes on; what is queued is left in the table.
func (c *core) lostSlot() {
	c.lock()
	defer c.mu.Unlock()
	c.endTerm()
	c.mu.doubtful, c.mu.live = false, false
	c.mu.boundary = everything // whoever holds it next may publish any row
}

func (c *core) endTerm() {
	c.mu.holder = false
	c.mu.epoch++
	c.dropQueues()
}

// inDoubt tells that nobody knows whether this relay still holds the slot.
func (c *core) inDoubt() bool {
	c.lock()
	defer c.mu.Unlock()
	return c.mu.doubtful
}

// reassured ends the doubt: the slot has been this relay's all the time.
func (c *core) reassured() {
	c.lock()
	defer c.mu.Unlock()
	if c.mu.doubtful {
		c.mu.doubtful = false
		c.beginTerm()
		signal(c.roomMade)
	}
}

// streamLive is told whether the server was heard of lately.
func (c *core) streamLive(live bool) {
	c.lock()
	defer c.mu.Unlock()
	if c.mu.live == live {
		return
	}
	if !live {
		c.mu.leftovers, c.mu.awaited = true, false // until it is heard of again, the table says what is new
	}
	c.mu.live = live
	signal(c.wake)
}

// isHolder tells whether this relay holds the slot.
func (c *core) isHolder() bool {
	c.lock()
	defer c.mu.Unlock()
	return c.mu.holder
}

// slotSeen is told whether nobody holds the slot.
func (c *core) slotSeen(free bool, now time.Time) {
	c.lock()
	defer c.mu.Unlock()
	if free && !c.mu.slotFree {
		c.mu.freeSince = now
	}
	c.mu.slotFree = free
}

// slotFreeFor is how long nobody has held the slot, as far as was asked.
func (c *core) slotFreeFor(now time.Time) time.Duration {
	c.lock()
	defer c.mu.Unlock()
	if !c.mu.slotFree {
		return 0
	}
	return now.Sub(c.mu.freeSince)
}

// failed is told what a statement of the pool failed with.
func (c *core) failed(err error) {
	const cannotConnectNow = "57P03"
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == cannotConnectNow {
		signal(c.refused)
	}
}
