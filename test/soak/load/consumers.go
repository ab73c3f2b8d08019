package load

import (
	"context"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// prefetch is how many messages the broker delivers before the first acknowledgement.
const prefetch = 200

// Consumers consume all queues of a run until they are stopped, across all faults of the broker. Each queue has one
// connection and one goroutine, so that its order is kept. They acknowledge a message after it was recorded. So it can
// be recorded twice, the second time as redelivered, and none is lost.
type Consumers struct {
	amqpURL string
	record  *history.Recorder
	stop    context.CancelFunc
	done    sync.WaitGroup
}

// StartConsumers starts them at the address of the broker itself, bypassing the proxies. They end with ctx, or through
// Stop.
func StartConsumers(ctx context.Context, amqpURL string, topology Topology, record *history.Recorder) *Consumers {
	ctx, stop := context.WithCancel(ctx)
	c := &Consumers{amqpURL: amqpURL, record: record, stop: stop}
	for _, queue := range topology.Queues() {
		c.done.Go(func() { c.consume(ctx, queue) })
	}
	return c
}

// Stop ends the consumers. Messages already delivered to them are recorded and acknowledged first.
func (c *Consumers) Stop() {
	c.stop()
	c.done.Wait()
}

func (c *Consumers) consume(ctx context.Context, queue string) {
	wait := reconnectLeast
	for ctx.Err() == nil {
		began := time.Now()
		_ = c.session(ctx, queue) // faults end it
		if time.Since(began) > reconnectMost {
			wait = reconnectLeast
		}
		if !Pause(ctx, wait) {
			return
		}
		wait = min(2*wait, reconnectMost)
	}
}

// session consumes on one connection until the connection fails, or until ctx has ended and all delivered messages are
// recorded.
func (c *Consumers) session(ctx context.Context, queue string) error {
	conn, err := dial(c.amqpURL, queue)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
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
				return nil
			}
			c.record.Delivered(delivery(&d, queue))
			if err := d.Ack(false); err != nil {
				return err
			}
		case <-stopping:
			stopping = nil
			// In another goroutine: the answer comes after deliveries, which the loop must receive. It ends with the
			// connection, which has heartbeats.
			c.done.Go(func() { _ = channel.Cancel(name, false) })
		}
	}
}
