// Package limit holds the programs that the relay is measured against: what the broker takes and the server gives at most,
// and another way to do the same work. Each runs in a process of its own, so that its processor time can be counted.
package limit

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/cdc-relay/cdc-relay/test/bench/load"
)

// Order says what a process is to do; it is read as JSON.
type Order struct {
	Kind     Kind
	AMQPURL  string
	Database string // address
	Table    string // as SQL writes it
	Slot     string
	Spec     load.Spec
	Messages int
	Window   int // messages in flight at most
}

// Kind is one of the programs.
type Kind string

// The programs.
const (
	Publish Kind = "publish" // publish with confirms through the AMQP library
	Read    Kind = "read"    // read a slot and discard
	Poll    Kind = "poll"    // a SKIP LOCKED poller
)

// Run reads an order and carries it out. A poller ends with ctx, the others when all messages are done.
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

// closeTimeout bounds the end of a connection.
const closeTimeout = 5 * time.Second
