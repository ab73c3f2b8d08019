package amqp

import (
	"sync"
	"time"
)

// clock measures the time in which the broker could have answered: it stops while the broker blocks the connection. It
// is safe for concurrent use.
type clock struct {
	mu      sync.Mutex
	start   time.Time
	stopped time.Time     // zero: it runs
	idle    time.Duration // how long it was stopped
}

func newClock() *clock { return &clock{start: time.Now()} }

// now returns the measured time.
func (c *clock) now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.stopped
	if at.IsZero() {
		at = time.Now()
	}
	return at.Sub(c.start) - c.idle
}

func (c *clock) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped.IsZero() {
		c.stopped = time.Now()
	}
}

func (c *clock) resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped.IsZero() {
		c.idle += time.Since(c.stopped)
		c.stopped = time.Time{}
	}
}

func (c *clock) running() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopped.IsZero()
}
