package replication

import "time"

// coalesceFor is how long a busy stream waits for more transactions. At thousands per second, a wake-up for each is
// most of its cost for all sides (docs/results/README.md).
const coalesceFor = time.Millisecond

// coalescer lets a busy stream wake up once per coalesceFor, like a network card with interrupts. Slower transactions
// are not delayed.
type coalescer struct {
	wokeAt time.Time
	// quick grows with each wake-up soon after the last one, and shrinks with the others.
	quick int
}

const (
	busyFrom = 4
	busiest  = 8
)

// wait waits until coalesceFor after the last wake-up, if the stream is busy.
func (c *coalescer) wait() {
	if c.quick >= busyFrom {
		time.Sleep(coalesceFor - time.Since(c.wokeAt))
	}
}

// woke records when a transaction started to arrive.
func (c *coalescer) woke(at time.Time) {
	const late = coalesceFor / 4 // timers fire late
	if at.Sub(c.wokeAt) < coalesceFor+late {
		c.quick = min(c.quick+1, busiest)
	} else {
		c.quick /= 2
	}
	c.wokeAt = at
}
