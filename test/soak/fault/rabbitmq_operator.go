package fault

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// relayConnections is the prefix of the relays' connection names. Consumers of the run use another.
const relayConnections = "cdc-relay "

// operatorFaults are what an operator does to a running broker.
func operatorFaults() []Fault {
	return []Fault{
		{
			Name: "rabbitmq-close-relays", Duplicates: allInFlight,
			About: "an operator closes the connections of the relays",
			Run: func(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, error) {
				n, err := w.RabbitMQ.CloseConnections(ctx, relayConnections, "closed by an operator")
				return fmt.Sprintf("%d connections", n), err
			},
		},
		{
			Name:  "rabbitmq-memory-alarm",
			About: "the broker is short of memory and blocks all publishers",
			Run:   held(raiseAlarm),
		},
		{
			Name: "rabbitmq-full-queue", Refuses: true,
			About: "a queue is full and rejects what is published to it",
			Run:   held(fillQueue),
		},
		{
			Name: "rabbitmq-permission", Refuses: true,
			About:      "the relays may not write to an exchange, or to none, until the permission is granted again",
			Duplicates: allInFlight, // the broker closes the channel before it has confirmed everything
			Run:        held(revokePermission),
		},
		{
			Name: "rabbitmq-login", Duplicates: allInFlight,
			About: "the relays' password is changed and their connections are closed, until it is changed back",
			Run:   held(lockOut),
		},
		{
			Name: "rabbitmq-poison", Duplicates: allInFlight,
			About: "one message among many in flight makes the broker close the channel",
			Run:   writePoison,
		},
	}
}

func raiseAlarm(ctx context.Context, w *World, _ *rand.Rand) (string, func(context.Context) error, error) {
	return "", w.RabbitMQ.ClearMemoryAlarm, w.RabbitMQ.RaiseMemoryAlarm(ctx)
}

// writePoison waits for the database, which another fault may have stopped.
func writePoison(ctx context.Context, w *World, random *rand.Rand, _ time.Duration) (string, error) {
	const least, most = 5 << 20, 8 << 20 // see largestMessage
	size := least + random.IntN(most-least)
	return fmt.Sprintf("%d bytes", size), persist(ctx, func(ctx context.Context) error {
		return w.Poison(ctx, size)
	})
}

// fillQueue sets a queue's limit to zero by a policy, so that its messages and consumers do not matter.
func fillQueue(ctx context.Context, w *World, random *rand.Rand) (string, func(context.Context) error, error) {
	const name = "full"
	there, err := w.RabbitMQ.Definitions(ctx, runVHost)
	if err != nil {
		return "", nil, err
	}
	queue, err := choose(random, "queue", there.Queues)
	if err != nil {
		return "", nil, err
	}
	full := services.Policy{
		Pattern: exactly(queue), ApplyTo: services.ApplyToQueues, Priority: 100,
		Definition: map[string]any{"max-length": 0, "overflow": "reject-publish"},
	}
	fix := func(ctx context.Context) error { return w.RabbitMQ.DeletePolicy(ctx, runVHost, name) }
	return queue, fix, w.RabbitMQ.SetPolicy(ctx, runVHost, name, full)
}

// revokePermission also clears the permission caches of open channels. RabbitMQ does that by itself with authentication
// backends that expire permissions.
func revokePermission(ctx context.Context, w *World, random *rand.Rand) (string, func(context.Context) error, error) {
	there, err := w.RabbitMQ.Definitions(ctx, runVHost)
	if err != nil {
		return "", nil, err
	}
	const everything = "everything"
	which, err := choose(random, "exchange", append(there.Exchanges, "amq.default", everything))
	if err != nil {
		return "", nil, err
	}
	permissions := services.AllPermissions()
	permissions.Write = "^(?!" + regexp.QuoteMeta(which) + "$)"
	if which == everything {
		permissions.Write = ""
	}
	grant := func(ctx context.Context) error {
		return w.RabbitMQ.Permit(ctx, runVHost, relayUser, services.AllPermissions())
	}
	if err := w.RabbitMQ.Permit(ctx, runVHost, relayUser, permissions); err != nil {
		return which, grant, err
	}
	return which, grant, w.RabbitMQ.ForgetPermissions(ctx)
}

func lockOut(ctx context.Context, w *World, _ *rand.Rand) (string, func(context.Context) error, error) {
	letIn := func(ctx context.Context) error { return w.RabbitMQ.AddUser(ctx, relayUser, relayPassword) }
	if err := w.RabbitMQ.AddUser(ctx, relayUser, "not "+relayPassword); err != nil {
		return "", letIn, err
	}
	n, err := w.RabbitMQ.CloseConnections(ctx, relayConnections, "the password was changed")
	return fmt.Sprintf("%d connections", n), letIn, err
}

// choose picks one of the names.
func choose(random *rand.Rand, what string, names []string) (string, error) {
	if len(names) == 0 {
		return "", fmt.Errorf("there is no %s in the virtual host %s", what, runVHost)
	}
	return names[random.IntN(len(names))], nil
}

// exactly returns a regular expression for one name.
func exactly(name string) string { return "^" + regexp.QuoteMeta(name) + "$" }
