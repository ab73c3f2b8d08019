package publish

import (
	"slices"
	"sync"

	"github.com/cdc-relay/cdc-relay/internal/signal"
)

// Mailbox passes values from any goroutine to one taker, in order. Putting never blocks. Its callers bound its size.
type Mailbox[T any] struct {
	mu    sync.Mutex
	items []T
	// slow are values that give way to the others: those for which isSlow, if it is set, returns true.
	slow   []T
	isSlow func(T) bool
	// wake is sent while there may be a value.
	wake signal.Signal
}

// mostSlow is how many slow values are taken at a time, so that the next others wait only for these.
const mostSlow = 16

// NewMailbox returns an empty mailbox.
func NewMailbox[T any]() *Mailbox[T] {
	return &Mailbox[T]{wake: signal.New()}
}

// Put adds a value and wakes the taker.
func (b *Mailbox[T]) Put(v T) {
	b.Add(v)
	b.Signal()
}

// Add adds a value without waking the taker.
func (b *Mailbox[T]) Add(v T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isSlow != nil && b.isSlow(v) {
		b.slow = append(b.slow, v)
	} else {
		b.items = append(b.items, v)
	}
}

// Signal wakes the taker.
func (b *Mailbox[T]) Signal() { b.wake.Send() }

// Wake receives a value while there may be something to take.
func (b *Mailbox[T]) Wake() <-chan struct{} { return b.wake }

// Take returns all values except some of the slow ones, and keeps spare, emptied, for the next ones.
func (b *Mailbox[T]) Take(spare []T) []T {
	clear(spare)
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.slow), mostSlow)
	taken := append(b.items, b.slow[:n]...)
	b.items, b.slow = spare[:0], slices.Delete(b.slow, 0, n)
	if len(b.slow) > 0 {
		b.Signal()
	}
	return taken
}
