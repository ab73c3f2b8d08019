package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// ConsumerOptions say what is consumed, and where.
type ConsumerOptions struct {
	// AMQPURLs are the addresses of the broker itself, past any proxy; of a cluster, each node's, tried in turn.
	AMQPURLs []string
	Topology Topology
}

// ConsumerRecorder is what the consumers tell of arrivals; history.Recorder is one.
type ConsumerRecorder interface {
	Delivered(history.Delivery)
}

// prefetch is how many messages the broker hands out before the first is acknowledged.
const prefetch = 200

// Consumers take messages from all queues of a run until they are stopped, whatever becomes of the broker. Each queue has
// one connection and one goroutine, so that its order is kept. A message is acknowledged after it was recorded, so it
// may be recorded twice, the second time as redelivered, and none is lost.
type Consumers struct {
	Trouble Trouble

	opts   ConsumerOptions
	record ConsumerRecorder
	stop   context.CancelFunc
	done   sync.WaitGroup
}

// StartConsumers starts them. They end with ctx, or by Stop.
func StartConsumers(ctx context.Context, opts ConsumerOptions, record ConsumerRecorder) *Consumers {
	ctx, stop := context.WithCancel(ctx)
	c := &Consumers{opts: opts, record: record, stop: stop}
	for i, queue := range opts.Topology.Queues() {
		c.done.Go(func() { c.consume(ctx, queue, i) })
	}
	return c
}

// Stop ends the consumers. What the broker has handed out by then is recorded and acknowledged first.
func (c *Consumers) Stop() {
	c.stop()
	c.done.Wait()
}

// consume begins with another node of a cluster for each queue, and at each attempt.
func (c *Consumers) consume(ctx context.Context, queue string, attempt int) {
	wait := reconnectLeast
	for ; ctx.Err() == nil; attempt++ {
		began := time.Now()
		err := c.session(ctx, c.opts.AMQPURLs[attempt%len(c.opts.AMQPURLs)], queue)
		if ctx.Err() != nil {
			return
		}
		c.Trouble.add(fmt.Errorf("queue %s: %w", queue, err))
		if time.Since(began) > reconnectMost {
			wait = reconnectLeast
		}
		if !pause(ctx, wait) {
			return
		}
		wait = min(2*wait, reconnectMost)
	}
}

// session consumes on one connection until that fails, or until ctx has ended and all that was handed out is recorded.
func (c *Consumers) session(ctx context.Context, amqpURL, queue string) error {
	conn, err := dialBroker(ctx, amqpURL, queue)
	if err != nil {
		return err
	}
	defer conn.close()
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	closed := channel.NotifyClose(make(chan *amqp.Error, 1))
	if err := channel.Qos(prefetch, 0, false); err != nil {
		return err
	}
	const name = "soak"
	deliveries, err := channel.Consume(queue, name, false, false, false, false, nil)
	if err != nil {
		return err
	}
	stopping := ctx.Done()
	for {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return reason(closed)
			}
			c.record.Delivered(inspect(&d, queue))
			if err := d.Ack(false); err != nil {
				return err
			}
		case <-stopping:
			stopping = nil
			// Beside the loop: it waits for an answer that comes after deliveries, which the loop must take. It ends
			// with the connection, whose deadlines bound it.
			c.done.Go(func() { _ = channel.Cancel(name, false) })
		}
	}
}

func reason(closed <-chan *amqp.Error) error {
	select {
	case err := <-closed:
		if err != nil {
			return err
		}
	default:
	}
	return errors.New("the broker ended the consumer")
}
