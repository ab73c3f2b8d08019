package program

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// dialTimeout limits connecting, and is the interval of heartbeats.
const dialTimeout = 5 * time.Second

// Dial connects to RabbitMQ. The caller ends the connection with HangUp.
func Dial(amqpURL, name string) (*amqp.Connection, error) {
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(name)
	conn, err := amqp.DialConfig(amqpURL, amqp.Config{
		Dial: amqp.DefaultDial(dialTimeout), Heartbeat: dialTimeout, Properties: properties,
	})
	if err != nil {
		return nil, fmt.Errorf("connect to RabbitMQ: %w", err)
	}
	return conn, nil
}

// HangUp closes a connection in order if the broker answers in time.
func HangUp(conn *amqp.Connection) { _ = conn.CloseDeadline(time.Now().Add(dialTimeout)) }

// Consume takes what arrives in a queue, until the connection fails, or until ctx has ended and everything that was
// delivered is taken. It acknowledges many messages at once, so that it costs the broker little. Before it returns, it
// has acknowledged what it has taken.
func Consume(ctx context.Context, conn *amqp.Connection, queue string, prefetch int, take func(*amqp.Delivery)) error {
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := channel.Qos(prefetch, 0, false); err != nil {
		return err
	}
	const name = "consumer"
	deliveries, err := channel.Consume(queue, name, false, false, false, false, nil)
	if err != nil {
		return err
	}
	// The answer comes after deliveries, which the loop must receive.
	defer context.AfterFunc(ctx, func() { _ = channel.Cancel(name, false) })()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var newest uint64
	taken := 0 // and not acknowledged
	for open := true; open; {
		due := false
		select {
		case d, more := <-deliveries:
			if open = more; open {
				take(&d)
				newest = d.DeliveryTag
				taken++
			}
			due = !open || taken >= prefetch/4
		case <-tick.C:
			due = true
		}
		if due && taken > 0 {
			if err := channel.Ack(newest, true); err != nil {
				return err
			}
			taken = 0
		}
	}
	return nil
}
