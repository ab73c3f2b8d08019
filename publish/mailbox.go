package publish

import (
	"sync"

	"github.com/cdc-relay/cdc-relay/internal/signal"
)

// Mailbox passes values from any goroutine to one taker, in order. Putting never blocks. Its callers bound its size.
type Mailbox[T any] struct {
	mu    sync.Mutex
	items []T
	// wake is sent while there may be a value.
	wake signal.Signal
}

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
	b.items = append(b.items, v)
	b.mu.Unlock()
}

// Signal wakes the taker.
func (b *Mailbox[T]) Signal() { b.wake.Send() }

// Wake receives a value while there may be something to take.
func (b *Mailbox[T]) Wake() <-chan struct{} { return b.wake }

// Take returns all values, and keeps spare, emptied, for the next ones.
func (b *Mailbox[T]) Take(spare []T) []T {
	clear(spare)
	b.mu.Lock()
	taken := b.items
	b.items = spare[:0]
	b.mu.Unlock()
	return taken
}
