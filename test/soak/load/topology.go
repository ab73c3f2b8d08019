package load

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Topology names what a run uses in RabbitMQ: queues, and besides the default exchange a direct and a topic exchange,
// both bound to every queue.
type Topology struct {
	Prefix string // of every name
}

// plainQueues and keyedQueues are the numbers of queues for messages without and with an ordering key. A key always
// goes to the same queue, which has one consumer, so that its order is visible.
const plainQueues, keyedQueues = 3, 3

// Direct is the name of the direct exchange; the routing key is the name of the queue.
func (t Topology) Direct() string { return t.Prefix + ".direct" }

// Topic is the name of the topic exchange; the routing key begins with the name of the queue and a dot.
func (t Topology) Topic() string { return t.Prefix + ".topic" }

// Queues returns the names of all queues.
func (t Topology) Queues() []string {
	var names []string
	for i := range plainQueues {
		names = append(names, t.plainQueue(i))
	}
	for i := range keyedQueues {
		names = append(names, t.keyedQueue(i))
	}
	return names
}

func (t Topology) plainQueue(i int) string { return fmt.Sprintf("%s.plain.%d", t.Prefix, i) }
func (t Topology) keyedQueue(i int) string { return fmt.Sprintf("%s.keyed.%d", t.Prefix, i) }

// queueOf returns the queue of an ordering key.
func (t Topology) queueOf(key string) string {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(key)) // never fails
	return t.keyedQueue(int(hash.Sum32() % keyedQueues))
}

// Declare creates durable exchanges, queues and bindings in the virtual host of the URL. Existing ones stay, so it can
// be called again after some were deleted.
func Declare(ctx context.Context, amqpURL string, t Topology) error {
	err := onChannel(ctx, amqpURL, func(channel *amqp.Channel) error {
		for name, kind := range map[string]string{t.Direct(): amqp.ExchangeDirect, t.Topic(): amqp.ExchangeTopic} {
			if err := channel.ExchangeDeclare(name, kind, true, false, false, false, nil); err != nil {
				return fmt.Errorf("exchange %s: %w", name, err)
			}
		}
		for _, queue := range t.Queues() {
			if err := t.declareQueue(channel, queue); err != nil {
				return fmt.Errorf("queue %s: %w", queue, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("declare the queues of the run: %w", err)
	}
	return nil
}

func (t Topology) declareQueue(channel *amqp.Channel, queue string) error {
	if _, err := channel.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		return err
	}
	if err := channel.QueueBind(queue, queue, t.Direct(), false, nil); err != nil {
		return err
	}
	return channel.QueueBind(queue, queue+".#", t.Topic(), false, nil)
}

// AwaitEmptyQueues waits until the broker has delivered all messages; the consumers may not have acknowledged the last
// ones. Its error, after ctx has ended, says which queue has how many.
func AwaitEmptyQueues(ctx context.Context, amqpURL string, t Topology) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := waiting(ctx, amqpURL, t)
		if err == nil && left == "" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if err != nil {
				return fmt.Errorf("wait for empty queues: %w", err)
			}
			return fmt.Errorf("wait for empty queues: %s", left)
		}
	}
}

// waiting names a queue with messages; "": none.
func waiting(ctx context.Context, amqpURL string, t Topology) (left string, err error) {
	err = onChannel(ctx, amqpURL, func(channel *amqp.Channel) error {
		for _, queue := range t.Queues() {
			state, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
			if err != nil {
				return err
			}
			if state.Messages > 0 {
				left = fmt.Sprintf("%d messages are in %s, which has %d consumers",
					state.Messages, queue, state.Consumers)
				return nil
			}
		}
		return nil
	})
	return left, err
}

// onChannel calls f with a new connection, which is closed when ctx ends.
func onChannel(ctx context.Context, amqpURL string, f func(*amqp.Channel) error) error {
	c, err := dial(amqpURL, "topology")
	if err != nil {
		return err
	}
	defer hangUp(c)
	stop := context.AfterFunc(ctx, func() { hangUp(c) })
	defer stop()
	channel, err := c.Channel()
	if err != nil {
		return err
	}
	return f(channel)
}
