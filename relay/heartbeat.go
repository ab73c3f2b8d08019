package relay

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
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

// awaited are the messages that the publisher has given no result for. All methods may be called at the same time.
type awaited struct {
	mu       sync.Mutex
	messages map[*outbox.Message]struct{}
	last     time.Time // of a result, or of the first message
}

func (a *awaited) sent(m *outbox.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.messages) == 0 {
		a.last = time.Now()
	}
	a.messages[m] = struct{}{}
}

// answered reports whether a result for the message was awaited.
func (a *awaited) answered(m *outbox.Message) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, is := a.messages[m]
	if is {
		delete(a.messages, m)
		a.last = time.Now()
	}
	return is
}

// silent returns for how long the publisher has had messages and given no result.
func (a *awaited) silent() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.messages) == 0 {
		return 0
	}
	return time.Since(a.last)
}
