package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/cdc-relay/cdc-relay/internal/services"
)

// rabbitmqFaults are those of the broker.
func rabbitmqFaults() []Fault {
	return slices.Concat(brokerProcessFaults(), brokerNetworkFaults(), operatorFaults(), topologyFaults())
}

// brokerProcessFaults end or stop the broker's own process.
func brokerProcessFaults() []Fault {
	return []Fault{
		{
			Name:    "rabbitmq-kill",
			About:   "SIGKILL of the broker; it is started again after the hold",
			Needs:   OwnRabbitMQ,
			Repeats: allInFlight,
			Run:     held(endBroker(kill)),
		},
		{
			Name:    "rabbitmq-restart",
			About:   "the broker is stopped in the orderly way and started again after the hold",
			Needs:   OwnRabbitMQ,
			Repeats: allInFlight,
			Run:     held(endBroker(stop)),
		},
		{
			Name:    "rabbitmq-pause",
			About:   "SIGSTOP of the broker, SIGCONT after the hold: its connections stay open and nothing answers",
			Needs:   OwnRabbitMQ,
			Repeats: allInFlight,
			Run:     held(pauseBroker),
		},
		{
			Name:    "rabbitmq-majority",
			About:   "SIGKILL of two of three nodes: quorum queues confirm nothing until they are started again",
			Needs:   OwnRabbitMQ | Cluster,
			Repeats: allInFlightAndProbes,
			Run:     held(loseMajority),
		},
	}
}

// allInFlight is what may be published again where every relay loses what the broker has not confirmed.
func allInFlight(w *World) int { return len(w.Relays) * w.MaxInFlight }

// allInFlightAndProbes also has the messages that a relay sends one by one, once for each time it has reconnected, to see
// whether the broker confirms again. The broker may have taken each of them.
func allInFlightAndProbes(w *World) int {
	const probes = 20 // of a relay, in a hold of some minutes
	return len(w.Relays) * (w.MaxInFlight + probes)
}

// beginning makes a fault of the broker. fix undoes it; it is called also where there was an error, unless it is nil.
type beginning func(ctx context.Context, w *World, random *rand.Rand) (detail string, fix func(context.Context) error, err error)

// held begins a fault, holds and fixes it. The fixing is tried more than once, since another fault may be under way on
// the same broker.
func held(begin beginning) func(context.Context, *World, *rand.Rand, time.Duration) (string, error) {
	return func(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, error) {
		detail, fix, err := begin(ctx, w, random)
		if err == nil {
			wait(ctx, hold)
		}
		if fix == nil {
			return detail, err
		}
		ctx, cancel := fixing(ctx)
		defer cancel()
		return detail, errors.Join(err, persist(ctx, fix))
	}
}

// persist tries until it succeeds, for at most hangTimeout.
func persist(ctx context.Context, try func(context.Context) error) error {
	const pause = 500 * time.Millisecond
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		return struct{}{}, try(ctx)
	}, backoff.WithBackOff(backoff.NewConstantBackOff(pause)), backoff.WithMaxElapsedTime(hangTimeout))
	return err
}

func endBroker(end func(context.Context, *services.RabbitMQ) error) beginning {
	return func(ctx context.Context, w *World, _ *rand.Rand) (string, func(context.Context) error, error) {
		ctx, cancel := fixing(ctx) // what has begun is not left halfway
		defer cancel()
		return "", func(ctx context.Context) error { return startNode(ctx, w.RabbitMQ) }, end(ctx, w.RabbitMQ)
	}
}

// kill takes nothing with it that had been declared: that would be the broker's loss.
func kill(ctx context.Context, node *services.RabbitMQ) error {
	if err := node.Flush(ctx); err != nil {
		return err
	}
	return node.Kill(ctx)
}

func stop(ctx context.Context, node *services.RabbitMQ) error { return node.Stop(ctx) }

// startNode starts a broker that does not run.
func startNode(ctx context.Context, node *services.RabbitMQ) error {
	if node.PID() != 0 {
		return nil
	}
	return node.Start(ctx)
}

func pauseBroker(ctx context.Context, w *World, _ *rand.Rand) (string, func(context.Context) error, error) {
	return "", w.RabbitMQ.Resume, w.RabbitMQ.Pause(ctx)
}

// loseMajority leaves the node that the relays are connected to.
func loseMajority(ctx context.Context, w *World, _ *rand.Rand) (string, func(context.Context) error, error) {
	others := w.nodes.Nodes[1:]
	start := func(ctx context.Context) error {
		return eachNode(others, func(node *services.RabbitMQ) error { return startNode(ctx, node) })
	}
	ctx, cancel := fixing(ctx)
	defer cancel()
	return "", start, eachNode(others, func(node *services.RabbitMQ) error { return kill(ctx, node) })
}

// eachNode calls f for all nodes at once and waits.
func eachNode(nodes []*services.RabbitMQ, f func(*services.RabbitMQ) error) error {
	errs := make([]error, len(nodes))
	var group sync.WaitGroup
	for i, node := range nodes {
		group.Go(func() {
			if err := f(node); err != nil {
				errs[i] = fmt.Errorf("node at %s: %w", node.Addr(), err)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}
