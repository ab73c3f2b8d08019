package relay

import "time"

// patience is how long the stream may still wait for room in the window. It does not last for a
// window that is full most of the time, whose rows pile up in the WAL; it does for one that is full
// for moments, again and again. It is pure, and belongs to one goroutine.
type patience struct {
	// waited is what is used of it, at the time of asked.
	waited time.Duration
	asked  time.Time
}

const (
	// spillAfter is all of it. The rows that come then stay in the table for the sweep.
	spillAfter = 300 * time.Millisecond
	// regain: of this much time in which the stream did not wait it gets one part back.
	regain = 4
)

// left is what is left of it, above zero where the stream may wait.
func (p *patience) left(now time.Time) time.Duration {
	if p.waited > 0 {
		p.waited = max(0, p.waited-now.Sub(p.asked)/regain)
	}
	p.asked = now
	return spillAfter - p.waited
}

// spent notes that the stream has waited since it asked.
func (p *patience) spent(began, now time.Time) {
	p.waited += now.Sub(began)
	p.asked = now
}
