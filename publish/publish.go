// Package publish brings messages to the broker and reports, for each, what
// became of it. It knows nothing of tables, LSNs or ordering: who gives it a
// message has decided that it may leave now.
package publish

import (
	"context"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Publisher is what the relay publishes through. AMQP and Stdout implement it;
// the conformance suite in conformance_test.go holds for both.
type Publisher interface {
	// Run connects, publishes and reconnects until ctx is done, then closes the
	// connection. Before it returns, every message handed over has had its result.
	// It is called once and returns nil after a cancelled ctx, an error only for
	// what no retry can fix (a wrong configuration).
	Run(ctx context.Context, sink Sink) error
	// Publish hands one message over. It never blocks: the caller keeps at most
	// as many messages without a result as the publisher was made for. It may be
	// called from any goroutine, also before Run; messages of one exchange leave
	// in the order of the calls, except those that have to be sent alone (see
	// isolator). Called while the publisher is not ready, the result is NotSent.
	Publish(m *outbox.Message)
}

// Sink takes what the publisher reports. Its methods are called from the
// publisher's goroutines, several at a time, and must not block. They may call
// Publish. Publish itself calls Deliver only after Run has returned.
type Sink interface {
	// Deliver is called exactly once for each message published.
	Deliver(outbox.Result)
	// StateChanged is called at each change of the state, first with Connecting.
	StateChanged(State)
}

// Phase is where the publisher stands.
type Phase uint8

// The phases. Only in Ready are messages taken.
const (
	Connecting Phase = iota + 1 // no connection: dialling, with backoff
	Ready                       // connected; messages are taken
	Blocked                     // the broker sent connection.blocked (memory or disk alarm)
	Paused                      // the breaker is open: cooling down after consecutive outages
	Closed                      // Run has ended
)

// String is the name used in logs and metrics.
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

// State is the publisher's phase and why.
type State struct {
	Phase Phase
	Since time.Time
	// Detail is one line for people, empty in Ready; it holds no password.
	Detail string
	// Breaker is closed, open or half_open; empty for a publisher without one.
	Breaker string
}
