package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// limitOrder says what the process must publish; it is read as JSON.
type limitOrder struct {
	AMQPURL  string
	Spec     Spec
	Messages int
	Window   int // maximum number of messages in flight
}

// RunLimit reads an order, and publishes its messages with confirms through the AMQP library: one write to the socket
// for each message.
func RunLimit(ctx context.Context, input io.Reader) error {
	var order limitOrder
	if err := json.NewDecoder(input).Decode(&order); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	conn, err := dial(order.AMQPURL, "bench publish")
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(dialTimeout)) }()
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := channel.Confirm(false); err != nil {
		return err
	}
	returned := channel.NotifyReturn(make(chan amqp.Return, order.Window))
	// A message occupies the window from before it is sent until it is confirmed.
	window := make(chan struct{}, order.Window)
	waiting := make(chan *amqp.DeferredConfirmation, order.Window)
	confirmed := make(chan error, 1)
	go func() {
		var failed error
		for confirm := range waiting {
			failed = cmp.Or(failed, await(confirm, returned))
			<-window
		}
		confirmed <- failed
	}()
	filler, stamp := order.Spec.Filler(), time.Now()
	for n := 0; n < order.Messages && ctx.Err() == nil && err == nil; n++ {
		window <- struct{}{}
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
			waiting <- confirm // has room for the whole window
		}
	}
	close(waiting)
	return errors.Join(err, ctx.Err(), <-confirmed)
}

// await waits for the confirm of a message.
func await(confirm *amqp.DeferredConfirmation, returned <-chan amqp.Return) error {
	<-confirm.Done() // also closed when the connection is lost
	if !confirm.Acked() {
		return errors.New("the broker has not confirmed a message")
	}
	select {
	case r, open := <-returned:
		if open {
			return fmt.Errorf("the broker has returned a message: %s", r.ReplyText)
		}
	default:
	}
	return nil
}
