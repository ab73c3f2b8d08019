package publish

import "sync"

// mailbox passes values from any goroutine to one taker, in order. Putting never blocks. Its callers bound its size.
type mailbox[T any] struct {
	mu    sync.Mutex
	items []T
	// wake holds a token while there may be a value.
	wake chan struct{}
}

func newMailbox[T any]() *mailbox[T] {
	return &mailbox[T]{wake: make(chan struct{}, 1)}
}

// put adds a value and wakes the taker.
func (b *mailbox[T]) put(v T) {
	b.add(v)
	b.signal()
}

// add adds a value without waking the taker.
func (b *mailbox[T]) add(v T) {
	b.mu.Lock()
	b.items = append(b.items, v)
	b.mu.Unlock()
}

func (b *mailbox[T]) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns all values, and keeps spare, emptied, for the next ones.
func (b *mailbox[T]) take(spare []T) []T {
	clear(spare)
	b.mu.Lock()
	taken := b.items
	b.items = spare[:0]
	b.mu.Unlock()
	return taken
}
