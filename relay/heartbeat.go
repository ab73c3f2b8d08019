package relay

import (
	"sync/atomic"
	"time"
)

// heartbeat shows whether an actor's loop makes progress. The actor writes it, health reads it.
type heartbeat struct{ last atomic.Int64 }

// heartbeatEvery is the longest pause of a healthy loop: two beats fit into slowAfter.
const heartbeatEvery = slowAfter / 2

func newHeartbeat() *heartbeat {
	h := &heartbeat{}
	h.beat()
	return h
}

func (h *heartbeat) beat() { h.last.Store(time.Now().UnixNano()) }

// beatFor beats in advance, for a step with a known bound.
func (h *heartbeat) beatFor(d time.Duration) { h.last.Store(time.Now().Add(d).UnixNano()) }

func (h *heartbeat) age() time.Duration { return time.Duration(time.Now().UnixNano() - h.last.Load()) }

// muteness measures how long the publisher has had messages and given no result. All methods may be called at the same
// time.
type muteness struct{ out, last atomic.Int64 }

func (s *muteness) sent() {
	if s.out.Add(1) == 1 {
		s.last.Store(time.Now().UnixNano())
	}
}

func (s *muteness) answered() {
	s.last.Store(time.Now().UnixNano())
	s.out.Add(-1)
}

func (s *muteness) lasts() time.Duration {
	if s.out.Load() == 0 {
		return 0
	}
	return max(time.Duration(time.Now().UnixNano()-s.last.Load()), 0)
}
