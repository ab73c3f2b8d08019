package services

import (
	"context"
	"encoding/json"
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

// QuorumQueue is where a quorum queue is. The numbers are indexes of [RabbitMQCluster.Nodes].
type QuorumQueue struct {
	Name    string
	Leader  int   // -1: there is none at the moment
	Members []int // all of them
	Online  []int // those that run
}

// QuorumQueues lists the quorum queues of a virtual host, "/" is the one of the start, as a running node sees them.
func (c *RabbitMQCluster) QuorumQueues(ctx context.Context, through int, vhost string) ([]QuorumQueue, error) {
	output, err := c.Nodes[through].Ctl(ctx, "list_queues", "-q", "-p", vhost, "--formatter", "json",
		"name", "type", "leader", "members", "online")
	if err != nil {
		return nil, fmt.Errorf("list the quorum queues of %s: %w", vhost, err)
	}
	var listed []struct {
		Name, Type, Leader string
		Members, Online    []string
	}
	if err := json.Unmarshal([]byte(output), &listed); err != nil {
		return nil, fmt.Errorf("list the quorum queues of %s: %w in %q", vhost, err, output)
	}
	var queues []QuorumQueue
	for _, one := range listed {
		if one.Type != "quorum" {
			continue
		}
		queues = append(queues, QuorumQueue{
			Name: one.Name, Leader: c.index(one.Leader), Members: c.indexes(one.Members), Online: c.indexes(one.Online),
		})
	}
	return queues, nil
}

func (c *RabbitMQCluster) indexes(names []string) (indexes []int) {
	for _, name := range names {
		indexes = append(indexes, c.index(name))
	}
	return indexes
}

// index finds a node by its Erlang name, which contains its port; -1: there is none.
func (c *RabbitMQCluster) index(name string) int {
	for i, node := range c.Nodes {
		if name == nodeName(node.address.Port()) {
			return i
		}
	}
	return -1
}
