package limit

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/bench/load"
)

// Channel publishes with confirms in the way of the library: one write to the socket for each message.
type Channel struct {
	*amqp.Channel
	returned <-chan amqp.Return
	stamp    time.Time
}

// Open opens a channel for this many messages in flight.
func Open(conn *amqp.Connection, window int) (*Channel, error) {
	channel, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := channel.Confirm(false); err != nil {
		return nil, err
	}
	returned := channel.NotifyReturn(make(chan amqp.Return, window))
	return &Channel{Channel: channel, returned: returned, stamp: time.Now()}, nil
}

// Send publishes a message with the size and properties of the relay's messages.
func (c *Channel) Send(n int, queue string, body []byte) (*amqp.DeferredConfirmation, error) {
	return c.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{
		ContentType:  "application/json",
		DeliveryMode: amqp.Persistent,
		MessageId:    messageID(n),
		Timestamp:    c.stamp,
		Body:         body,
	})
}

// messageID looks like a UUID.
func messageID(n int) string {
	const hex = "0123456789abcdef"
	id := []byte("a8f5f167-f44f-4964-a6c8-000000000000")
	for i := len(id) - 1; n > 0; i-- {
		id[i] = hex[n%len(hex)]
		n /= len(hex)
	}
	return string(id)
}

// Await waits for the confirm of a message.
func (c *Channel) Await(confirm *amqp.DeferredConfirmation) error {
	<-confirm.Done() // also closed when the connection is lost
	if !confirm.Acked() {
		return errors.New("the broker has not confirmed a message")
	}
	select {
	case r, open := <-c.returned:
		if open {
			return fmt.Errorf("the broker has returned a message: %s", r.ReplyText)
		}
	default:
	}
	return nil
}

func publish(ctx context.Context, order Order) error {
	conn, err := load.Dial(order.AMQPURL, "bench publish")
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(closeTimeout)) }()
	channel, err := Open(conn, order.Window)
	if err != nil {
		return err
	}
	// A message occupies the window from before it is sent until it is confirmed.
	window := make(chan struct{}, order.Window)
	waiting := make(chan *amqp.DeferredConfirmation, order.Window)
	confirmed := make(chan error, 1)
	go func() { confirmed <- awaitAll(channel, waiting, window) }()
	err = sendAll(ctx, channel, order, waiting, window)
	close(waiting)
	return errors.Join(err, <-confirmed)
}

func sendAll(
	ctx context.Context,
	channel *Channel,
	order Order,
	waiting chan<- *amqp.DeferredConfirmation,
	window chan<- struct{},
) error {
	filler := order.Spec.Filler()
	for n := range order.Messages {
		select {
		case window <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		confirm, err := channel.Send(n, order.Spec.Queue(n), order.Spec.Body(n, filler))
		if err != nil {
			return err
		}
		waiting <- confirm // has room for the whole window
	}
	return nil
}

func awaitAll(channel *Channel, waiting <-chan *amqp.DeferredConfirmation, window <-chan struct{}) error {
	var failed error
	for confirm := range waiting {
		if err := channel.Await(confirm); err != nil && failed == nil {
			failed = err
		}
		<-window
	}
	return failed
}
