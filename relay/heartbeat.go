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
