package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// prefetch is how many messages the broker delivers before the first acknowledgement.
	prefetch = 2000
	// acknowledgeEvery and acknowledgeAfter bundle acknowledgements, so that the consumer costs the broker little.
	acknowledgeEvery = 500
	acknowledgeAfter = 20 * time.Millisecond
	// dialTimeout limits connecting.
	dialTimeout = 10 * time.Second
)

// dial opens a connection to the broker. It notices a dead broker within seconds.
func dial(amqpURL, name string) (*amqp.Connection, error) {
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(name)
	conn, err := amqp.DialConfig(amqpURL, amqp.Config{
		Dial: amqp.DefaultDial(dialTimeout), Heartbeat: dialTimeout, Properties: properties,
	})
	if err != nil {
		return nil, fmt.Errorf("connect to the broker: %w", err)
	}
	return conn, nil
}

// consume declares the queue of the messages and consumes it. stop ends that, and returns an earlier error.
func consume(ctx context.Context, amqpURL string, spec Spec, arrivals *arrivals) (stop func() error, err error) {
	conn, err := dial(amqpURL, "bench consumer")
	if err != nil {
		return nil, err
	}
	channel, deliveries, err := open(ctx, conn, spec)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("consume from %s: %w", spec.Queue, err), conn.Close())
	}
	done := make(chan error, 1)
	go func() { done <- take(channel, deliveries, arrivals) }()
	return func() error {
		err := conn.CloseDeadline(time.Now().Add(dialTimeout))
		return errors.Join(<-done, err)
	}, nil
}

func open(ctx context.Context, conn *amqp.Connection, spec Spec) (*amqp.Channel, <-chan amqp.Delivery, error) {
	channel, err := conn.Channel()
	if err != nil {
		return nil, nil, err
	}
	var args amqp.Table // without a type, as the programs that declare their queues do
	if spec.QueueType != "" {
		args = amqp.Table{amqp.QueueTypeArg: spec.QueueType}
	}
	if _, err := channel.QueueDeclare(spec.Queue, true, false, false, false, args); err != nil {
		return nil, nil, err
	}
	if err := channel.Qos(prefetch, 0, false); err != nil {
		return nil, nil, err
	}
	deliveries, err := channel.ConsumeWithContext(ctx, spec.Queue, "", false, false, false, false, nil)
	return channel, deliveries, err
}

// take ends with the channel.
func take(channel *amqp.Channel, deliveries <-chan amqp.Delivery, arrivals *arrivals) error {
	tick := time.NewTicker(acknowledgeAfter)
	defer tick.Stop()
	var waiting int
	var newest uint64
	acknowledge := func() error {
		if waiting == 0 {
			return nil
		}
		waiting = 0
		return channel.Ack(newest, true)
	}
	for {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return nil
			}
			n, err := number(d.Body)
			if err != nil {
				return err
			}
			arrivals.arrivedAt(n, time.Now())
			newest = d.DeliveryTag
			if waiting++; waiting >= acknowledgeEvery {
				if err := acknowledge(); err != nil {
					return err
				}
			}
		case <-tick.C:
			if err := acknowledge(); err != nil {
				return err
			}
		}
	}
}

// deleteQueue deletes a queue with its messages.
func deleteQueue(amqpURL, queue string) error {
	conn, err := dial(amqpURL, "bench cleaner")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	if _, err := channel.QueueDelete(queue, false, false, false); err != nil {
		return fmt.Errorf("delete the queue %s: %w", queue, err)
	}
	return nil
}
