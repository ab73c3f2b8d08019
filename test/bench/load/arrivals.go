package load

import (
	"sync"
	"sync/atomic"
	"time"
)

// Arrivals records when each message of a run was committed and when it arrived. It is safe for concurrent use.
type Arrivals struct {
	committed, arrived []atomic.Int64 // nanoseconds since 1970; 0: not yet

	expected   int
	distinct   atomic.Int64
	duplicates atomic.Int64
	first      atomic.Int64
	last       atomic.Int64
	all        chan struct{} // closed when every message has arrived
	closeOnce  sync.Once
}

// NewArrivals is for messages 0 to expected-1.
func NewArrivals(expected int) *Arrivals {
	return &Arrivals{
		committed: make([]atomic.Int64, expected), arrived: make([]atomic.Int64, expected),
		expected: expected, all: make(chan struct{}),
	}
}

// Committed records when the commit of message n was answered.
func (a *Arrivals) Committed(n int, at time.Time) { a.committed[n].Store(at.UnixNano()) }

// arrivedAt records the arrival of message n. Only the first arrival counts.
func (a *Arrivals) arrivedAt(n int, at time.Time) {
	now := at.UnixNano()
	if n >= a.expected || !a.arrived[n].CompareAndSwap(0, now) {
		a.duplicates.Add(1)
		return
	}
	a.first.CompareAndSwap(0, now)
	a.last.Store(now)
	if a.distinct.Add(1) == int64(a.expected) {
		a.closeOnce.Do(func() { close(a.all) })
	}
}

// All is closed when every message has arrived.
func (a *Arrivals) All() <-chan struct{} { return a.all }

// Count returns how many different messages have arrived.
func (a *Arrivals) Count() int { return int(a.distinct.Load()) }

// Duplicates returns how many messages arrived again, or are not of this run.
func (a *Arrivals) Duplicates() int { return int(a.duplicates.Load()) }

// First returns when the first message arrived; the zero time: none has.
func (a *Arrivals) First() time.Time { return fromNano(a.first.Load()) }

// Last returns when the latest message arrived.
func (a *Arrivals) Last() time.Time { return fromNano(a.last.Load()) }

func fromNano(nano int64) time.Time {
	if nano == 0 {
		return time.Time{}
	}
	return time.Unix(0, nano)
}

// Latencies returns the times from the answer to a message's commit until its arrival, of messages first and later. One
// can be negative: the server streams a commit that is on disk before it answers.
func (a *Arrivals) Latencies(first int) (all []time.Duration) {
	for n := first; n < a.expected; n++ {
		committed, arrived := a.committed[n].Load(), a.arrived[n].Load()
		if committed != 0 && arrived != 0 {
			all = append(all, time.Duration(arrived-committed))
		}
	}
	return all
}
