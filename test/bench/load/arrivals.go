package load

import (
	"sync"
	"sync/atomic"
	"time"
)

// Arrivals notes when each message of a run was committed and when it arrived. It is safe for concurrent use.
type Arrivals struct {
	committed, arrived []atomic.Int64 // nanoseconds since 1970; 0: not yet

	expected  int
	distinct  atomic.Int64
	repeats   atomic.Int64
	first     atomic.Int64
	last      atomic.Int64
	all       chan struct{} // closed when every message has arrived
	closeOnce sync.Once
}

// NewArrivals is for messages 0 to expected-1.
func NewArrivals(expected int) *Arrivals {
	return &Arrivals{
		committed: make([]atomic.Int64, expected), arrived: make([]atomic.Int64, expected),
		expected: expected, all: make(chan struct{}),
	}
}

// Committed notes that the commit of message n was answered at this time.
func (a *Arrivals) Committed(n int, at time.Time) { a.committed[n].Store(at.UnixNano()) }

// arrivedAt notes message n. Of repeats only the first counts.
func (a *Arrivals) arrivedAt(n int, at time.Time) {
	now := at.UnixNano()
	if n >= a.expected || !a.arrived[n].CompareAndSwap(0, now) {
		a.repeats.Add(1)
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

// Count is how many different messages have arrived.
func (a *Arrivals) Count() int { return int(a.distinct.Load()) }

// Repeats is how many messages arrived again, or were none of the run's.
func (a *Arrivals) Repeats() int { return int(a.repeats.Load()) }

// First and Last are when the first and the newest message arrived; the zero time where none has.
func (a *Arrivals) First() time.Time { return fromNano(a.first.Load()) }

// Last is when the newest message arrived.
func (a *Arrivals) Last() time.Time { return fromNano(a.last.Load()) }

func fromNano(nano int64) time.Time {
	if nano == 0 {
		return time.Time{}
	}
	return time.Unix(0, nano)
}

// Latency is how long a message took from the answer to its commit until it arrived. It can be below 0: the server streams
// what is written to disk before it answers.
type Latency struct {
	Message   int
	Committed time.Time
	Took      time.Duration
}

// Latencies are those of the messages from first on that were committed and have arrived, in the order of their numbers.
func (a *Arrivals) Latencies(first int) []Latency {
	var all []Latency
	for n := first; n < a.expected; n++ {
		committed, arrived := a.committed[n].Load(), a.arrived[n].Load()
		if committed != 0 && arrived != 0 {
			all = append(all, Latency{Message: n, Committed: fromNano(committed), Took: time.Duration(arrived - committed)})
		}
	}
	return all
}
