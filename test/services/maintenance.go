package services

import (
	"context"
	"fmt"
)

// Drain puts the node into maintenance mode: it closes its client connections, stops listening for clients, and hands
// its queue leaders to other nodes. Revive, or a restart, ends it.
func (r *RabbitMQ) Drain(ctx context.Context) error { return r.upgrade(ctx, "drain") }

// Revive ends the maintenance mode: the node listens for clients again.
func (r *RabbitMQ) Revive(ctx context.Context) error { return r.upgrade(ctx, "revive") }

// AwaitQuorum waits until every quorum queue of the cluster can lose this node and keep its majority.
func (r *RabbitMQ) AwaitQuorum(ctx context.Context) error {
	return r.upgrade(ctx, "await_online_quorum_plus_one")
}

func (r *RabbitMQ) upgrade(ctx context.Context, step string) error {
	if _, err := r.runner.tool(ctx, "rabbitmq-upgrade", step); err != nil {
		return fmt.Errorf("rabbitmq-upgrade %s: %w", step, err)
	}
	return nil
}
