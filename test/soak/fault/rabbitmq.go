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

	"github.com/cdc-relay/cdc-relay/test/services"
)

// rabbitmqFaults are the faults of the broker.
func rabbitmqFaults() []Fault {
	return slices.Concat(brokerProcessFaults(), brokerNetworkFaults(), operatorFaults(), topologyFaults())
}

// brokerProcessFaults end or stop the broker's process.
func brokerProcessFaults() []Fault {
	return []Fault{
		{
			Name: "rabbitmq-kill", Duplicates: allInFlight,
			About: "SIGKILL of the broker; it is started again after the hold",
			Run:   held(endBroker(kill)),
		},
		{
			Name: "rabbitmq-restart", Duplicates: allInFlight,
			About: "the broker is stopped gracefully and started again after the hold",
			Run:   held(endBroker(stop)),
		},
		{
			Name: "rabbitmq-pause", Duplicates: allInFlight,
			About: "SIGSTOP of the broker, SIGCONT after the hold: its connections stay open and nothing answers",
			Run:   held(pauseBroker),
		},
		{
			Name: "rabbitmq-majority", Needs: Cluster, Duplicates: allInFlightAndProbes,
			About: "SIGKILL of two of three nodes: quorum queues confirm nothing until they are started again",
			Run:   held(loseMajority),
		},
	}
}

// allInFlight returns how many duplicates are allowed if every relay loses its unconfirmed messages.
func allInFlight(w *World) int { return len(w.Relays) * maxInFlight }

// allInFlightAndProbes also counts the single messages that a relay sends after each reconnect to test the broker. The
// broker may have accepted each of them.
func allInFlightAndProbes(w *World) int {
	const probes = 20 // for each relay, in a hold of some minutes
	return len(w.Relays) * (maxInFlight + probes)
}

// beginning causes a fault of the broker. fix undoes it; it is also called after an error, unless it is nil.
type beginning func(
	ctx context.Context, w *World, random *rand.Rand,
) (detail string, fix func(context.Context) error, err error)

// held begins a fault, holds it and fixes it. It retries the fix, because another fault of the same broker may still be
// active.
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

// persist retries until it succeeds, for at most hangTimeout.
func persist(ctx context.Context, try func(context.Context) error) error {
	const pause = 500 * time.Millisecond
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		return struct{}{}, try(ctx)
	}, backoff.WithBackOff(backoff.NewConstantBackOff(pause)), backoff.WithMaxElapsedTime(hangTimeout))
	return err
}

func endBroker(end func(context.Context, *services.RabbitMQ) error) beginning {
	return func(ctx context.Context, w *World, _ *rand.Rand) (string, func(context.Context) error, error) {
		ctx, cancel := fixing(ctx) // do not leave it half fixed
		defer cancel()
		return "", func(ctx context.Context) error { return startNode(ctx, w.RabbitMQ) }, end(ctx, w.RabbitMQ)
	}
}

// kill first flushes declared objects to disk: losing them would be the broker's fault.
func kill(ctx context.Context, node *services.RabbitMQ) error {
	if err := node.Flush(ctx); err != nil {
		return err
	}
	return node.Kill(ctx)
}

func stop(ctx context.Context, node *services.RabbitMQ) error { return node.Stop(ctx) }

// startNode starts the broker unless it runs.
func startNode(ctx context.Context, node *services.RabbitMQ) error {
	if node.PID() != 0 {
		return nil
	}
	return node.Start(ctx)
}

func pauseBroker(ctx context.Context, w *World, _ *rand.Rand) (string, func(context.Context) error, error) {
	return "", w.RabbitMQ.Resume, w.RabbitMQ.Pause(ctx)
}

// loseMajority kills all nodes except the one that the relays are connected to.
func loseMajority(ctx context.Context, w *World, _ *rand.Rand) (string, func(context.Context) error, error) {
	others := w.nodes.Nodes[1:]
	start := func(ctx context.Context) error {
		return eachNode(others, func(node *services.RabbitMQ) error { return startNode(ctx, node) })
	}
	ctx, cancel := fixing(ctx)
	defer cancel()
	return "", start, eachNode(others, func(node *services.RabbitMQ) error { return kill(ctx, node) })
}

// eachNode calls f for all nodes at the same time and waits.
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
