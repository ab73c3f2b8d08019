package services

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
)

// RabbitMQCluster is a cluster of private brokers on this machine. Each node can be stopped, killed, paused and started
// like a single broker. A quorum queue has a member on each node if it was declared while all nodes were running.
type RabbitMQCluster struct {
	// Nodes are in the order of their start.
	Nodes []*RabbitMQ
}

// clusterSettings are added to rabbitmq.conf of each node. By default, the log of a quorum queue would grow to half a
// gigabyte before it is truncated.
func clusterSettings() []string {
	return []string{
		"cluster_partition_handling = autoheal",
		"cluster_name = cdc-relay",
		"raft.wal_max_size_bytes = 33554432",
	}
}

// clusterErlang lets a node detect a silent one within about five seconds; the default is a minute.
const clusterErlang = " -kernel net_ticktime 4"

// StartRabbitMQCluster starts n brokers from the machine's own programs, joins them, and waits until each accepts
// connections. opts.Settings apply to each node; opts.Way is ignored. The caller closes the cluster.
//
// The nodes listen on 127.0.0.1 and use names at localhost. A node takes about 150 MB of memory.
func StartRabbitMQCluster(ctx context.Context, n int, opts Options) (*RabbitMQCluster, error) {
	if n < 1 {
		return nil, fmt.Errorf("a cluster needs at least one node, not %d", n)
	}
	c := &RabbitMQCluster{}
	err := c.prepare(ctx, n, opts)
	if err == nil {
		err = c.start(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a rabbitmq cluster: %w", err), c.Close(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// prepare creates the nodes. They share a cookie and the port mapper of the first node.
func (c *RabbitMQCluster) prepare(ctx context.Context, n int, opts Options) error {
	const each = 3 // ports of a node, without the shared mapper
	ports, err := freePorts(each*n + 1)
	if err != nil {
		return err
	}
	mapper, ports := ports[0], ports[1:]
	var nodes []*node
	for i := range n {
		node, err := newNode(ctx, opts, append(ports[each*i:each*(i+1):each*(i+1)], mapper), clusterErlang)
		if err != nil {
			return err
		}
		c.Nodes, nodes = append(c.Nodes, node.RabbitMQ), append(nodes, node)
	}
	settings := append(clusterSettings(), opts.Settings...)
	for i, node := range nodes {
		node.cookie = nodes[0].cookie
		its := settings
		if i > 0 { // the first node has nobody to join
			its = slices.Concat(settings, discovery(nodes))
		}
		if err := node.writeFiles(its); err != nil {
			return fmt.Errorf("prepare node %d: %w", i+1, err)
		}
	}
	return nodes[0].startEPMD(ctx)
}

func discovery(nodes []*node) []string {
	lines := []string{"cluster_formation.peer_discovery_backend = classic_config"}
	for i, node := range nodes {
		lines = append(lines, "cluster_formation.classic_config.nodes."+strconv.Itoa(i+1)+" = "+node.name)
	}
	return lines
}

// start starts the first node, and then the others, which join it. A node listens before the first knows that it runs,
// and would not get a virtual host that is added at that moment.
func (c *RabbitMQCluster) start(ctx context.Context) error {
	if err := c.Nodes[0].Start(ctx); err != nil {
		return err
	}
	errs := make([]error, len(c.Nodes))
	var starting sync.WaitGroup
	for i, node := range c.Nodes[1:] {
		starting.Go(func() { errs[i] = node.Start(ctx) })
	}
	starting.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err := c.Nodes[0].Ctl(ctx, "await_online_nodes", strconv.Itoa(len(c.Nodes)))
	return err
}

// Close ends all nodes and removes their data.
func (c *RabbitMQCluster) Close(ctx context.Context) error {
	var errs []error
	for i := len(c.Nodes) - 1; i >= 0; i-- { // the first node last: it owns the port mapper
		if err := c.Nodes[i].Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("close node %d: %w", i+1, err))
		}
	}
	return errors.Join(errs...)
}
