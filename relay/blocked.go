package relay

import (
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/publish"
)

// blockedTime adds up how long the broker has blocked the publisher.
type blockedTime struct {
	mu struct {
		sync.Mutex
		before time.Duration
		since  time.Time // zero: not blocked
	}
}

func (b *blockedTime) changed(s publish.State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch blocked := s.Phase == publish.Blocked; {
	case blocked && b.mu.since.IsZero():
		b.mu.since = s.Since
	case !blocked && !b.mu.since.IsZero():
		b.mu.before += time.Since(b.mu.since)
		b.mu.since = time.Time{}
	}
}

func (b *blockedTime) total(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.since.IsZero() {
		return b.mu.before
	}
	return b.mu.before + now.Sub(b.mu.since)
}
