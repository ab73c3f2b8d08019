// Package limit contains what the relay is compared with: the maximum of the broker. It runs in its own process, so
// that its processor time can be measured.
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
	AMQPURL  string
	Spec     load.Spec
	Messages int
	Window   int // maximum number of messages in flight
}

// Run reads an order, and publishes its messages with confirms through the AMQP library.
func Run(ctx context.Context, input io.Reader) error {
	var order Order
	if err := json.NewDecoder(input).Decode(&order); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	return publish(ctx, order)
}

// closeTimeout limits closing a connection.
const closeTimeout = 5 * time.Second
