package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// confirming publishes with confirms in the way of the library: one write to the socket for each message.
type confirming struct {
	*amqp.Channel
	returned <-chan amqp.Return
	stamp    time.Time
}

// confirmingOn opens a channel for this many messages in flight.
func confirmingOn(conn *amqp.Connection, window int) (*confirming, error) {
	channel, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := channel.Confirm(false); err != nil {
		return nil, err
	}
	returned := channel.NotifyReturn(make(chan amqp.Return, window))
	return &confirming{Channel: channel, returned: returned, stamp: time.Now()}, nil
}

// send publishes a message with the size and properties of the relay's messages.
func (c *confirming) send(n int, queue string, body []byte) (*amqp.DeferredConfirmation, error) {
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

// await waits for the confirm of a message.
func (c *confirming) await(confirm *amqp.DeferredConfirmation) error {
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

// limitOrder says what the process must publish; it is read as JSON.
type limitOrder struct {
	AMQPURL  string
	Spec     Spec
	Messages int
	Window   int // maximum number of messages in flight
}

// RunLimit reads an order, and publishes its messages with confirms through the AMQP library.
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
	channel, err := confirmingOn(conn, order.Window)
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
	channel *confirming,
	order limitOrder,
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
		confirm, err := channel.send(n, order.Spec.Queue(n), order.Spec.Body(n, filler))
		if err != nil {
			return err
		}
		waiting <- confirm // has room for the whole window
	}
	return nil
}

func awaitAll(channel *confirming, waiting <-chan *amqp.DeferredConfirmation, window <-chan struct{}) error {
	var failed error
	for confirm := range waiting {
		if err := channel.await(confirm); err != nil && failed == nil {
			failed = err
		}
		<-window
	}
	return failed
}
