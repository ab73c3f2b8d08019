package replication

import "time"

// breath is how long transactions may gather where they come faster than that: at thousands a
// second, waking up for each is most of what one costs all sides (docs/performance.md).
const breath = time.Millisecond

// breather lets a busy stream wake up for new transactions once a breath. What comes more slowly
// than that is not held up.
type breather struct {
	wokeAt time.Time
	// quick grows with each awakening that comes within a breath or so of the one before, and
	// shrinks with the others: at a few hundred a second some come together too.
	quick int
}

const (
	busyFrom = 4
	busiest  = 8
)

// rest waits until a breath after the last awakening, where the stream is busy.
func (b *breather) rest() {
	if b.quick >= busyFrom {
		time.Sleep(breath - time.Since(b.wokeAt))
	}
}

// woke is told when a transaction began to arrive.
func (b *breather) woke(at time.Time) {
	const late = breath / 4 // timers are
	if at.Sub(b.wokeAt) < breath+late {
		b.quick = min(b.quick+1, busiest)
	} else {
		b.quick /= 2
	}
	b.wokeAt = at
}
