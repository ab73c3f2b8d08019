// Package limit contains the programs that the relay is compared with: the maximum of the broker and of the server, and
// a poller that does the same work. Each runs in its own process, so that its processor time can be measured.
package limit

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/cdc-relay/cdc-relay/test/bench/load"
)

// Order says what a process must do; it is read as JSON.
type Order struct {
	Kind     Kind
	AMQPURL  string
	Database string // a URL
	Table    string // as SQL writes it
	Slot     string
	Spec     load.Spec
	Messages int
	Window   int // maximum number of messages in flight
}

// Kind is one of the programs.
type Kind string

// The programs.
const (
	Publish Kind = "publish" // publish with confirms through the AMQP library
	Read    Kind = "read"    // read a slot and discard
	Poll    Kind = "poll"    // a SKIP LOCKED poller
)

// Run reads an order and executes it. A poller ends with ctx, the others when all messages are done.
func Run(ctx context.Context, input io.Reader) error {
	var order Order
	if err := json.NewDecoder(input).Decode(&order); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	switch order.Kind {
	case Publish:
		return publish(ctx, order)
	case Read:
		return read(ctx, order)
	case Poll:
		return poll(ctx, order)
	}
	return fmt.Errorf("there is no limit %q", order.Kind)
}

// closeTimeout limits closing a connection.
const closeTimeout = 5 * time.Second
