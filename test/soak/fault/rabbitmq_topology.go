package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/services"
)

// topologyFaults take away where messages go to.
func topologyFaults() []Fault {
	return []Fault{
		{
			Name:    "rabbitmq-exchange-deleted",
			About:   "an exchange is deleted while messages are published to it, and made again after the hold",
			Needs:   OwnRabbitMQ,
			Refuses: true,
			Repeats: allInFlight, // the broker closes the channel before it has confirmed all
			Run:     held(deleteExchange),
		},
		{
			Name:    "rabbitmq-vhost-deleted",
			About:   "the virtual host is deleted while its queues are empty, and made again with all that was in it",
			Needs:   OwnRabbitMQ,
			Repeats: allInFlight,
			Run:     held(deleteVHost),
		},
	}
}

func deleteExchange(ctx context.Context, w *World, random *rand.Rand) (string, func(context.Context) error, error) {
	there, err := w.RabbitMQ.Definitions(ctx, runVHost)
	if err != nil {
		return "", nil, err
	}
	exchange, err := choose(random, "exchange", there.Exchanges)
	if err != nil {
		return "", nil, err
	}
	restore := func(ctx context.Context) error { return w.RabbitMQ.Restore(ctx, runVHost, there) }
	return exchange, restore, w.RabbitMQ.DeleteExchange(ctx, runVHost, exchange)
}

// deleteVHost takes no message away that the broker had confirmed: nothing reaches the broker until the consumers have
// had all that is there. What the relays had sent by then and the broker has not seen is dropped with their connections.
func deleteVHost(ctx context.Context, w *World, _ *rand.Rand) (string, func(context.Context) error, error) {
	ctx, cancel := fixing(ctx)
	defer cancel()
	there, err := w.RabbitMQ.Definitions(ctx, runVHost)
	if err != nil {
		return "", nil, err
	}
	proxies := w.RabbitMQProxies()
	for _, proxy := range proxies {
		proxy.BlackHole(services.Upstream)
	}
	began := time.Now()
	err = w.awaitEmptyQueues(ctx)
	emptied := fmt.Sprintf("queues empty after %s", time.Since(began).Round(time.Millisecond))
	if err == nil {
		err = w.RabbitMQ.DeleteVHost(ctx, runVHost)
	}
	for _, proxy := range proxies {
		proxy.Cut()
		proxy.Resume(services.Upstream)
	}
	return emptied, func(ctx context.Context) error { return w.restoreVHost(ctx, there) }, err
}

// restoreVHost lets the relays in last, when all is there that they publish to. It may be called where nothing is gone.
func (w *World) restoreVHost(ctx context.Context, there *services.Definitions) error {
	if err := w.RabbitMQ.AddVHost(ctx, runVHost); err != nil {
		return err
	}
	if err := w.RabbitMQ.Restore(ctx, runVHost, there); err != nil {
		return err
	}
	return w.RabbitMQ.Permit(ctx, runVHost, relayUser, services.AllPermissions())
}

// awaitEmptyQueues waits until the broker holds no message, neither in a queue nor with a consumer. It looks twice: what a
// quorum queue holds is counted up to five seconds late.
func (w *World) awaitEmptyQueues(ctx context.Context) error {
	const single, quorum = 500 * time.Millisecond, 6 * time.Second
	between := single
	if w.nodes != nil {
		between = quorum
	}
	ctx, cancel := context.WithTimeoutCause(ctx, hangTimeout, errors.New("the consumers have not emptied the queues"))
	defer cancel()
	for empty := 0; empty < 2; {
		messages, err := w.RabbitMQ.Unsettled(ctx, runVHost)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("within %s: %w; there were %d messages", hangTimeout, context.Cause(ctx), messages)
		case err != nil:
			return err
		case messages > 0:
			empty = 0
		default:
			empty++
		}
		wait(ctx, between)
	}
	return nil
}
