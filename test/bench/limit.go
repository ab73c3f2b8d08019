package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/program"
)

// limitOrder says what the process must publish; it is read as JSON.
type limitOrder struct {
	AMQPURL  string
	Spec     Spec
	Messages int
}

// unconfirmed is how many messages a limit has in flight. Above this, a classic queue of RabbitMQ becomes slower.
const unconfirmed = 400

// RunLimit reads an order, and publishes its messages with confirms through the AMQP library: one write to the socket
// for each message.
func RunLimit(ctx context.Context, input io.Reader) error {
	var order limitOrder
	if err := json.NewDecoder(input).Decode(&order); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	conn, err := program.Dial(order.AMQPURL, "bench publish")
	if err != nil {
		return err
	}
	defer program.HangUp(conn)
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := channel.Confirm(false); err != nil {
		return err
	}
	// One more waits for its confirm than the channel has room for.
	waiting, confirmed := make(chan *amqp.DeferredConfirmation, unconfirmed-1), make(chan error, 1)
	go func() {
		acked := true
		for confirm := range waiting {
			<-confirm.Done() // also closed when the connection is lost
			acked = acked && confirm.Acked()
		}
		if !acked {
			confirmed <- errors.New("the broker has not confirmed a message")
		}
		close(confirmed)
	}()
	filler, stamp := order.Spec.Filler(), time.Now()
	for n := 0; n < order.Messages && ctx.Err() == nil && err == nil; n++ {
		var confirm *amqp.DeferredConfirmation
		// The size and properties of the relay's messages.
		confirm, err = channel.PublishWithDeferredConfirm("", order.Spec.Queue, true, false, amqp.Publishing{
			ContentType:  "application/json",
			DeliveryMode: amqp.Persistent,
			MessageId:    fmt.Sprintf("a8f5f167-f44f-4964-a6c8-%012x", n),
			Timestamp:    stamp,
			Body:         order.Spec.Body(n, filler),
		})
		if err == nil {
			waiting <- confirm
		}
	}
	close(waiting)
	return errors.Join(err, ctx.Err(), <-confirmed)
}
