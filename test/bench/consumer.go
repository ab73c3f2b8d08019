package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

// consumer consumes the queues of a run, each on its own channel.
type consumer struct {
	conn *amqp.Connection
	done sync.WaitGroup

	mu  sync.Mutex
	err error
}

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

// consume declares the queues of the messages and consumes them. Close ends the consumer.
func consume(ctx context.Context, amqpURL string, spec Spec, arrivals *arrivals) (*consumer, error) {
	conn, err := dial(amqpURL, "bench consumer")
	if err != nil {
		return nil, err
	}
	c := &consumer{conn: conn}
	for _, queue := range spec.Queues {
		if err := c.start(ctx, queue, spec.QueueType, arrivals); err != nil {
			return nil, errors.Join(fmt.Errorf("consume from %s: %w", queue, err), c.Close())
		}
	}
	return c, nil
}

func (c *consumer) start(ctx context.Context, queue, kind string, arrivals *arrivals) error {
	channel, err := c.conn.Channel()
	if err != nil {
		return err
	}
	var args amqp.Table // without a type, as the programs that declare their queues do
	if kind != "" {
		args = amqp.Table{amqp.QueueTypeArg: kind}
	}
	if _, err := channel.QueueDeclare(queue, true, false, false, false, args); err != nil {
		return err
	}
	if err := channel.Qos(prefetch, 0, false); err != nil {
		return err
	}
	deliveries, err := channel.ConsumeWithContext(ctx, queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	c.done.Go(func() { c.fail(take(channel, deliveries, arrivals)) })
	return nil
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

func (c *consumer) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

// Close stops the consumer and waits. It returns an earlier error.
func (c *consumer) Close() error {
	c.mu.Lock()
	err := c.err
	c.mu.Unlock()
	closing := c.conn.CloseDeadline(time.Now().Add(dialTimeout))
	c.done.Wait()
	return errors.Join(err, closing)
}

// deleteQueues deletes queues with their messages.
func deleteQueues(amqpURL string, queues []string) error {
	conn, err := dial(amqpURL, "bench cleaner")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	for _, queue := range queues {
		if _, err := channel.QueueDelete(queue, false, false, false); err != nil {
			return fmt.Errorf("delete the queue %s: %w", queue, err)
		}
	}
	return nil
}
