// Package load is the traffic of a soak run: writers that insert messages into the outbox as applications do, consumers
// that receive them from RabbitMQ, and a look at the tables at the end. They report to a recorder and judge nothing.
//
// Writers and consumers never give up: servers go down and come back during a run.
package load

import (
	"sync"
	"time"
)

// Trouble counts errors and keeps the latest: errors are expected in a soak run, so only their number matters, and the
// last one if nothing moves. It is safe for concurrent use.
type Trouble struct {
	mu  sync.Mutex
	now Errors
}

// Errors is the content of Trouble.
type Errors struct {
	Count  int
	Newest error // nil: none
	At     time.Time
}

func (t *Trouble) add(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now = Errors{Count: t.now.Count + 1, Newest: err, At: time.Now()}
}

// Seen returns the errors so far.
func (t *Trouble) Seen() Errors {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now
}
