package bench

import (
	"sync"
	"sync/atomic"
	"time"
)

// arrivals records when each message of a run was committed and when it arrived. It is safe for concurrent use.
type arrivals struct {
	committed, arrived []atomic.Int64 // nanoseconds since 1970; 0: not yet

	expected   int
	distinct   atomic.Int64
	duplicates atomic.Int64
	first      atomic.Int64
	all        chan struct{} // closed when every message has arrived
	closeOnce  sync.Once
}

// newArrivals is for messages 0 to expected-1.
func newArrivals(expected int) *arrivals {
	return &arrivals{
		committed: make([]atomic.Int64, expected), arrived: make([]atomic.Int64, expected),
		expected: expected, all: make(chan struct{}),
	}
}

// Committed records when the commit of message n was answered.
func (a *arrivals) Committed(n int, at time.Time) { a.committed[n].Store(at.UnixNano()) }

// arrivedAt records the arrival of message n. Only the first arrival counts.
func (a *arrivals) arrivedAt(n int, at time.Time) {
	now := at.UnixNano()
	if n >= a.expected || !a.arrived[n].CompareAndSwap(0, now) {
		a.duplicates.Add(1)
		return
	}
	a.first.CompareAndSwap(0, now)
	if a.distinct.Add(1) == int64(a.expected) {
		a.closeOnce.Do(func() { close(a.all) })
	}
}

// All is closed when every message has arrived.
func (a *arrivals) All() <-chan struct{} { return a.all }

// Count returns how many different messages have arrived.
func (a *arrivals) Count() int { return int(a.distinct.Load()) }

// Duplicates returns how many messages arrived again, or are not of this run.
func (a *arrivals) Duplicates() int { return int(a.duplicates.Load()) }

// First returns when the first message arrived. One must have.
func (a *arrivals) First() time.Time { return time.Unix(0, a.first.Load()) }

// Latencies returns the times from the answer to a message's commit until its arrival, of messages first and later. One
// can be negative: the server streams a commit that is on disk before it answers.
func (a *arrivals) Latencies(first int) (all []time.Duration) {
	for n := first; n < a.expected; n++ {
		committed, arrived := a.committed[n].Load(), a.arrived[n].Load()
		if committed != 0 && arrived != 0 {
			all = append(all, time.Duration(arrived-committed))
		}
	}
	return all
}
