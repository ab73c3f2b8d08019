// Package publish says what a publisher is, and has what all publishers share. A publisher sends messages and reports
// the result of each. It does not know tables, LSNs or ordering: the caller decides that a message may leave now.
package publish

import (
	"context"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Publisher is how the relay publishes. The packages amqp, stdout and handler implement it; test/publishtest tests the
// contract.
type Publisher interface {
	// Run connects, publishes and reconnects until ctx is done, then closes the connection. Before it returns, every
	// published message has its result. It is called once. It returns nil after ctx is done, and an error only if no
	// retry can help (a wrong configuration).
	Run(ctx context.Context, sink Sink) error
	// Publish publishes one message and never blocks. It may be called from any goroutine, also before Run. The caller
	// keeps the number of messages without a result within the publisher's limit.
	// Messages of one exchange leave in the order of the calls, except messages that give way to others (see Inbox) or
	// are sent alone (see Suspects). While the publisher is not ready, the result is NotSent.
	Publish(m *outbox.Message)
}

// Watched is a Publisher that can tell whether it hangs.
type Watched interface {
	// Overdue returns for how long Run has been doing something that must have ended before; 0: all is well. A
	// publisher that is overdue for long needs a new process: a call into a library does not return. It may be called
	// at any time.
	Overdue() time.Duration
}

// Limited is a Publisher that knows which bodies it cannot publish.
type Limited interface {
	// MostBody is the largest body that the broker accepts, in bytes, as it has said on this connection; 0: it has not.
	// The relay does not read larger ones. It may be called at any time.
	MostBody() int
}

// Sink receives the reports of a publisher. The publisher's goroutines call its methods concurrently. They must not
// block, and may call Publish. Publish itself calls Deliver only after Run has returned.
type Sink interface {
	// Deliver is called exactly once for each published message.
	Deliver(outbox.Result)
	// StateChanged is called at each change of the state, first with Connecting.
	StateChanged(State)
}

// Phase is the phase of a publisher.
type Phase uint8

// The phases. Messages are taken only in Ready.
const (
	Connecting Phase = iota + 1 // no connection: dialling, with backoff
	Ready                       // connected
	Blocked                     // the broker sent connection.blocked (memory or disk alarm)
	Paused                      // the breaker is open after consecutive outages
	Closed                      // Run has ended
)

// String returns the name in logs and metrics.
func (p Phase) String() string {
	switch p {
	case Connecting:
		return "connecting"
	case Ready:
		return "ready"
	case Blocked:
		return "blocked"
	case Paused:
		return "paused"
	case Closed:
		return "closed"
	}
	return "invalid"
}

// State is the publisher's phase, with the reason.
type State struct {
	Phase Phase
	Since time.Time
	// Detail is one line for people; empty in Ready. It never holds a password.
	Detail string
	// Breaker is closed, open or half_open; empty: the publisher has none.
	Breaker string
}
