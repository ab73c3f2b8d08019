package relay

import "time"

// waitBudget is how long the stream may still wait for room in the window. A window that is full most of the time uses it up,
// and rows are left in the table; one that is full for moments, again and again, does not. It belongs to one goroutine.
type waitBudget struct {
	// waited is what is used of it, at the time of asked.
	waited time.Duration
	asked  time.Time
}

const (
	// wholeBudget is all of it. The rows that come then are left in the table.
	wholeBudget = 300 * time.Millisecond
	// regain: of this much time in which the stream did not wait it gets one part back.
	regain = 4
)

// left is what is left of it, above zero where the stream may wait.
func (b *waitBudget) left(now time.Time) time.Duration {
	if b.waited > 0 {
		b.waited = max(0, b.waited-now.Sub(b.asked)/regain)
	}
	b.asked = now
	return wholeBudget - b.waited
}

// spent notes that the stream has waited since it asked.
func (b *waitBudget) spent(began, now time.Time) {
	b.waited += now.Sub(began)
	b.asked = now
}
