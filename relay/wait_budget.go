package relay

import "time"

// waitBudget is how long the stream may still wait for room in the window. A window that is full most of the time uses
// it up, and rows stay in the table. Short waits do not. Only one goroutine may use it.
type waitBudget struct {
	// waited is the used part of the budget, as of asked.
	waited time.Duration
	asked  time.Time
}

const (
	// wholeBudget is the full budget. Once it is used up, rows stay in the table.
	wholeBudget = 300 * time.Millisecond
	// regain: of the time without waiting, a quarter returns to the budget.
	regain = 4
)

// left returns the remaining budget. Above zero, the stream may wait.
func (b *waitBudget) left(now time.Time) time.Duration {
	if b.waited > 0 {
		b.waited = max(0, b.waited-now.Sub(b.asked)/regain)
	}
	b.asked = now
	return wholeBudget - b.waited
}

// spent records that the stream waited from began to now.
func (b *waitBudget) spent(began, now time.Time) {
	b.waited += now.Sub(began)
	b.asked = now
}
