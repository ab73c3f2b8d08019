package soak

import (
	"context"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/program"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// prefetch is how many messages the broker delivers before the first acknowledgement.
const prefetch = 200

// startConsumers starts to consume all queues, bypassing the proxies and across all faults of the broker, until ctx
// ends. Each queue has one connection and one goroutine, so that its order is kept. They acknowledge a message after it
// was recorded. So it can be recorded twice, the second time as redelivered, and none is lost. stop ends them when
// everything that was delivered is recorded.
func startConsumers(ctx context.Context, broker string, record *history.Recorder) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	for _, queue := range allQueues() {
		done.Go(func() {
			persist(ctx, func() error {
				conn, err := program.Dial(broker, "cdc-relay-soak "+queue)
				if err != nil {
					return err
				}
				defer program.HangUp(conn)
				return program.Consume(ctx, conn, queue, prefetch, func(d *amqp.Delivery) {
					record.Delivered(delivery(d, queue))
				})
			})
		})
	}
	return func() {
		cancel()
		done.Wait()
	}
}
