package soak

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/cdc-relay/cdc-relay/test/program"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// killBroker first flushes declared objects to disk: losing them would be the broker's fault.
func (w *world) killBroker(ctx context.Context) error {
	ctx, cancel := fixing(ctx)
	defer cancel()
	if err := w.rabbitMQ.Flush(ctx); err != nil {
		return err
	}
	return w.rabbitMQ.Kill(ctx)
}

func (w *world) stopBroker(ctx context.Context) error {
	ctx, cancel := fixing(ctx)
	defer cancel()
	return w.rabbitMQ.Stop(ctx)
}

func (w *world) startBroker(ctx context.Context) error {
	if w.rabbitMQ.PID() != 0 {
		return nil // it could not be ended
	}
	return w.rabbitMQ.Start(ctx)
}

// closeConnections closes those of the relays. Consumers of the run have other names.
func (w *world) closeConnections(ctx context.Context) error {
	_, err := w.rabbitMQ.CloseConnections(ctx, "cdc-relay ", "closed by an operator")
	return err
}

// fillQueue sets a queue's limit to zero by a policy, so that its messages and consumers do not matter.
func fillQueue(ctx context.Context, a *attempt) (fix, error) {
	const name = "full"
	queues := allQueues()
	a.detail = queues[a.random.IntN(len(queues))]
	full := services.Policy{
		Pattern: "^" + regexp.QuoteMeta(a.detail) + "$", ApplyTo: services.ApplyToQueues, Priority: 100,
		Definition: map[string]any{"max-length": 0, "overflow": "reject-publish"},
	}
	return func(ctx context.Context) error { return a.rabbitMQ.DeletePolicy(ctx, runVHost, name) },
		a.rabbitMQ.SetPolicy(ctx, runVHost, name, full)
}

// revokePermission also clears the permission caches of open channels. RabbitMQ does that by itself with authentication
// backends that expire permissions.
func revokePermission(ctx context.Context, a *attempt) (fix, error) {
	const everything = "everything"
	exchanges := []string{directExchange, topicExchange, "amq.default", everything}
	a.detail = exchanges[a.random.IntN(len(exchanges))]
	permissions := services.AllPermissions()
	permissions.Write = "^(?!" + regexp.QuoteMeta(a.detail) + "$)"
	if a.detail == everything {
		permissions.Write = ""
	}
	if err := a.rabbitMQ.Permit(ctx, runVHost, relayUser, permissions); err != nil {
		return a.permit, err
	}
	return a.permit, a.rabbitMQ.ForgetPermissions(ctx)
}

func (w *world) lockOut(ctx context.Context) error {
	if err := w.rabbitMQ.AddUser(ctx, relayUser, "not "+relayPassword); err != nil {
		return err
	}
	return w.closeConnections(ctx)
}

func deleteExchange(ctx context.Context, a *attempt) (fix, error) {
	exchanges := []string{directExchange, topicExchange}
	a.detail = exchanges[a.random.IntN(len(exchanges))]
	return func(context.Context) error { return declare(a.broker) },
		a.rabbitMQ.DeleteExchange(ctx, runVHost, a.detail)
}

// deleteVHost loses no confirmed message: it blocks the way to the broker until the consumers have emptied the queues.
// Messages that the relays sent and the broker has not read are lost with the connections. The relays may connect again
// when everything they publish to exists.
func (w *world) deleteVHost(ctx context.Context) error {
	ctx, cancel := fixing(ctx)
	defer cancel()
	for _, relay := range w.relays {
		relay.rabbitMQ.BlackHole(services.Upstream)
	}
	err := w.awaitEmptyQueues(ctx)
	if err == nil {
		err = w.rabbitMQ.DeleteVHost(ctx, runVHost)
	}
	for _, relay := range w.relays {
		relay.rabbitMQ.Cut()
		relay.rabbitMQ.Resume(services.Upstream)
	}
	return err
}

func (w *world) restoreVHost(ctx context.Context) error {
	if err := w.rabbitMQ.AddVHost(ctx, runVHost); err != nil {
		return err
	}
	if err := declare(w.broker); err != nil {
		return err
	}
	return w.permit(ctx)
}

// awaitEmptyQueues waits until the broker has no message in a queue or at a consumer. It checks twice.
func (w *world) awaitEmptyQueues(ctx context.Context) error {
	const between = 500 * time.Millisecond
	ctx, cancel := context.WithTimeoutCause(ctx, hangTimeout, errors.New("the consumers have not emptied the queues"))
	defer cancel()
	for empty := 0; empty < 2; program.Pause(ctx, between) {
		messages, err := w.rabbitMQ.Unsettled(ctx, runVHost)
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
