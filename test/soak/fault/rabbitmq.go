package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// killBroker first flushes declared objects to disk: losing them would be the broker's fault.
func killBroker(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
	ctx, cancel := fixing(ctx)
	defer cancel()
	err := w.RabbitMQ.Flush(ctx)
	if err == nil {
		err = w.RabbitMQ.Kill(ctx)
	}
	return "", w.startBroker, err
}

func stopBroker(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
	ctx, cancel := fixing(ctx)
	defer cancel()
	return "", w.startBroker, w.RabbitMQ.Stop(ctx)
}

func (w *World) startBroker(ctx context.Context) error {
	if w.RabbitMQ.PID() != 0 {
		return nil // it could not be ended
	}
	return w.RabbitMQ.Start(ctx)
}

func pauseBroker(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
	return "", w.RabbitMQ.Resume, w.RabbitMQ.Pause(ctx)
}

// relayConnections is the prefix of the relays' connection names. Consumers of the run use another.
const relayConnections = "cdc-relay "

func closeConnections(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
	n, err := w.RabbitMQ.CloseConnections(ctx, relayConnections, "closed by an operator")
	return fmt.Sprintf("%d connections", n), nil, err
}

func raiseAlarm(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
	return "", w.RabbitMQ.ClearMemoryAlarm, w.RabbitMQ.RaiseMemoryAlarm(ctx)
}

// fillQueue sets a queue's limit to zero by a policy, so that its messages and consumers do not matter.
func fillQueue(ctx context.Context, w *World, random *rand.Rand, _ time.Duration) (string, fix, error) {
	const name = "full"
	there, err := w.RabbitMQ.Definitions(ctx, runVHost)
	if err != nil {
		return "", nil, err
	}
	queue := there.Queues[random.IntN(len(there.Queues))]
	full := services.Policy{
		Pattern: "^" + regexp.QuoteMeta(queue) + "$", ApplyTo: services.ApplyToQueues, Priority: 100,
		Definition: map[string]any{"max-length": 0, "overflow": "reject-publish"},
	}
	clear := func(ctx context.Context) error { return w.RabbitMQ.DeletePolicy(ctx, runVHost, name) }
	return queue, clear, w.RabbitMQ.SetPolicy(ctx, runVHost, name, full)
}

// revokePermission also clears the permission caches of open channels. RabbitMQ does that by itself with authentication
// backends that expire permissions.
func revokePermission(ctx context.Context, w *World, random *rand.Rand, _ time.Duration) (string, fix, error) {
	there, err := w.RabbitMQ.Definitions(ctx, runVHost)
	if err != nil {
		return "", nil, err
	}
	const everything = "everything"
	exchanges := append(there.Exchanges, "amq.default", everything)
	which := exchanges[random.IntN(len(exchanges))]
	permissions := services.AllPermissions()
	permissions.Write = "^(?!" + regexp.QuoteMeta(which) + "$)"
	if which == everything {
		permissions.Write = ""
	}
	if err := w.RabbitMQ.Permit(ctx, runVHost, relayUser, permissions); err != nil {
		return which, w.permit, err
	}
	return which, w.permit, w.RabbitMQ.ForgetPermissions(ctx)
}

// permit gives the relays all permissions.
func (w *World) permit(ctx context.Context) error {
	return w.RabbitMQ.Permit(ctx, runVHost, relayUser, services.AllPermissions())
}

func lockOut(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
	letIn := func(ctx context.Context) error { return w.RabbitMQ.AddUser(ctx, relayUser, relayPassword) }
	if err := w.RabbitMQ.AddUser(ctx, relayUser, "not "+relayPassword); err != nil {
		return "", letIn, err
	}
	n, err := w.RabbitMQ.CloseConnections(ctx, relayConnections, "the password was changed")
	return fmt.Sprintf("%d connections", n), letIn, err
}

func deleteExchange(ctx context.Context, w *World, random *rand.Rand, _ time.Duration) (string, fix, error) {
	there, err := w.RabbitMQ.Definitions(ctx, runVHost)
	if err != nil {
		return "", nil, err
	}
	exchange := there.Exchanges[random.IntN(len(there.Exchanges))]
	restore := func(ctx context.Context) error { return w.RabbitMQ.Restore(ctx, runVHost, there) }
	return exchange, restore, w.RabbitMQ.DeleteExchange(ctx, runVHost, exchange)
}

// deleteVHost loses no confirmed message: it blocks the way to the broker until the consumers have emptied the queues.
// Messages that the relays sent and the broker has not read are lost with the connections. The relays may connect again
// when everything they publish to exists.
func deleteVHost(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
	ctx, cancel := fixing(ctx)
	defer cancel()
	there, err := w.RabbitMQ.Definitions(ctx, runVHost)
	if err != nil {
		return "", nil, err
	}
	for _, relay := range w.Relays {
		relay.RabbitMQ.BlackHole(services.Upstream)
	}
	began := time.Now()
	err = w.awaitEmptyQueues(ctx)
	emptied := fmt.Sprintf("queues empty after %s", time.Since(began).Round(time.Millisecond))
	if err == nil {
		err = w.RabbitMQ.DeleteVHost(ctx, runVHost)
	}
	for _, relay := range w.Relays {
		relay.RabbitMQ.Cut()
		relay.RabbitMQ.Resume(services.Upstream)
	}
	return emptied, func(ctx context.Context) error {
		if err := w.RabbitMQ.AddVHost(ctx, runVHost); err != nil {
			return err
		}
		if err := w.RabbitMQ.Restore(ctx, runVHost, there); err != nil {
			return err
		}
		return w.permit(ctx)
	}, err
}

// awaitEmptyQueues waits until the broker has no message in a queue or at a consumer. It checks twice.
func (w *World) awaitEmptyQueues(ctx context.Context) error {
	const between = 500 * time.Millisecond
	ctx, cancel := context.WithTimeoutCause(ctx, hangTimeout, errors.New("the consumers have not emptied the queues"))
	defer cancel()
	for empty := 0; empty < 2; wait(ctx, between) {
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
	}
	return nil
}
