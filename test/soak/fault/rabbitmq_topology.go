package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// topologyFaults delete the destinations of messages.
func topologyFaults() []Fault {
	return []Fault{
		{
			Name: "rabbitmq-exchange-deleted", Refuses: true,
			About:      "an exchange is deleted while messages are published to it, and declared again after the hold",
			Duplicates: allInFlight, // the broker closes the channel before it has confirmed everything
			Run:        held(deleteExchange),
		},
		{
			Name: "rabbitmq-vhost-deleted",
			About: "the virtual host is deleted while its queues are empty, " +
				"and created again with everything in it",
			Duplicates: allInFlight,
			Run:        held(deleteVHost),
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

// deleteVHost loses no confirmed message: it blocks the way to the broker until the consumers have emptied the queues.
// Messages that the relays sent and the broker has not read are lost with the connections.
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

// restoreVHost lets the relays connect last, when everything they publish to exists. It may be called if nothing is
// missing.
func (w *World) restoreVHost(ctx context.Context, there *services.Definitions) error {
	if err := w.RabbitMQ.AddVHost(ctx, runVHost); err != nil {
		return err
	}
	if err := w.RabbitMQ.Restore(ctx, runVHost, there); err != nil {
		return err
	}
	return w.RabbitMQ.Permit(ctx, runVHost, relayUser, services.AllPermissions())
}

// awaitEmptyQueues waits until the broker has no message in a queue or at a consumer. It checks twice: counts of a
// quorum queue are up to five seconds old.
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
