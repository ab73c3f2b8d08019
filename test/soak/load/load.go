// Package load is the traffic of a soak run: writers that insert messages into the outbox in all the ways of
// applications, consumers that take them from RabbitMQ, and a look at what is left in the tables at the end. All of them
// tell a recorder what they did and saw; none of them judges it.
//
// Writers and consumers never give up: the servers are expected to vanish and come back under them.
package load

import (
	"sync"
	"time"
)

// Trouble counts errors and keeps the newest: in a soak run they are expected, and only the number is of interest, or the
// last one where nothing moves. It is safe for concurrent use.
type Trouble struct {
	mu  sync.Mutex
	now Errors
}

// Errors is what Trouble has seen.
type Errors struct {
	Count  int
	Newest error // nil where there was none
	At     time.Time
}

func (t *Trouble) add(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now = Errors{Count: t.now.Count + 1, Newest: err, At: time.Now()}
}

// Seen is what there was so far.
func (t *Trouble) Seen() Errors {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now
}
