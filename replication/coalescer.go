package replication

import "time"

// coalesceFor is how long a busy stream lets transactions gather: at thousands a second, waking up
// for each is most of what one costs all sides (docs/performance.md).
const coalesceFor = time.Millisecond

// coalescer lets a busy stream wake up once in coalesceFor, as a network card does with interrupts.
// Transactions that come more slowly are not delayed.
type coalescer struct {
	wokeAt time.Time
	// quick grows with each awakening soon after the one before, and shrinks with the others.
	quick int
}

const (
	busyFrom = 4
	busiest  = 8
)

// wait lasts until coalesceFor after the last awakening if the stream is busy.
func (c *coalescer) wait() {
	if c.quick >= busyFrom {
		time.Sleep(coalesceFor - time.Since(c.wokeAt))
	}
}

// woke is told when a transaction began to arrive.
func (c *coalescer) woke(at time.Time) {
	const late = coalesceFor / 4 // timers are
	if at.Sub(c.wokeAt) < coalesceFor+late {
		c.quick = min(c.quick+1, busiest)
	} else {
		c.quick /= 2
	}
	c.wokeAt = at
}
