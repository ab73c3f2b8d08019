package bench

import (
	"sync/atomic"
	"time"
)

// arrivals records when each message of a run was committed and when it arrived. It is safe for concurrent use.
type arrivals struct {
	committedAt, arrivedAt []atomic.Int64 // nanoseconds since 1970; 0: not yet
	distinct, duplicates   atomic.Int64   // messages that arrived; that arrived again, or are not of this run
	firstAt                atomic.Int64
	all                    chan struct{} // closed when every message has arrived
}

// newArrivals is for messages 0 to expected-1.
func newArrivals(expected int) *arrivals {
	return &arrivals{
		committedAt: make([]atomic.Int64, expected), arrivedAt: make([]atomic.Int64, expected),
		all: make(chan struct{}),
	}
}

// committed records when the commit of message n was answered.
func (a *arrivals) committed(n int, at time.Time) { a.committedAt[n].Store(at.UnixNano()) }

// arrived records the arrival of message n. Only the first arrival counts.
func (a *arrivals) arrived(n int, at time.Time) {
	now := at.UnixNano()
	if n < 0 || n >= len(a.arrivedAt) || !a.arrivedAt[n].CompareAndSwap(0, now) {
		a.duplicates.Add(1)
		return
	}
	a.firstAt.CompareAndSwap(0, now)
	if a.distinct.Add(1) == int64(len(a.arrivedAt)) {
		close(a.all)
	}
}

// count returns how many different messages have arrived.
func (a *arrivals) count() int { return int(a.distinct.Load()) }

// first returns when the first message arrived. One must have.
func (a *arrivals) first() time.Time { return time.Unix(0, a.firstAt.Load()) }

// latencies returns the times from the answer to a message's commit until its arrival, of messages first and later. One
// can be negative: the server streams a commit that is on disk before it answers.
func (a *arrivals) latencies(first int) (all []time.Duration) {
	for n := first; n < len(a.arrivedAt); n++ {
		committed, arrived := a.committedAt[n].Load(), a.arrivedAt[n].Load()
		if committed != 0 && arrived != 0 {
			all = append(all, time.Duration(arrived-committed))
		}
	}
	return all
}
