package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// clustered is a world with a cluster of RabbitMQ, and a relay that knows all nodes.
type clustered struct {
	*world
	nodes []*services.RabbitMQ
	relay *relay
	load  *writers
	each  map[string]int // how many rows each key has
}

// newClustered declares a quorum queue with a member on each node. The node that the relay uses leads it.
func newClustered(t *testing.T) *clustered {
	t.Helper()
	c := &clustered{nodes: services.PrivateRabbitMQCluster(t, 3).Nodes, each: make(map[string]int)}
	first, vhost := c.nodes[0], services.Name(t)
	must(t, "add a virtual host", first.AddVHost(t.Context(), vhost))
	c.world = newWorldOn(t, services.Database(t), first.URL(vhost))
	hosts := make([]string, len(c.nodes))
	for i, node := range c.nodes {
		hosts[i] = node.Addr()
	}
	all := strings.Replace(c.broker, first.Addr(), strings.Join(hosts, ","), 1)
	c.settings = []string{"CDC_RELAY_AMQP_URL=" + all, "CDC_RELAY_KEEP_PUBLISHED=1h"}
	c.succeeds("setup")
	c.relay = c.run()
	c.broker = c.current().URL(vhost)
	c.declareQueue(c.queue, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum})
	c.load = c.write(2)
	return c
}

// connection is what the relay logs about one connection.
type connection struct {
	Event, Address string
	Attempts       int
}

func (r *relay) connections() (all []connection) {
	for _, line := range linesWith(r.logs(), `"broker_connected"`) {
		var one connection
		must(r.w.t, "read a line", json.Unmarshal([]byte(line), &one))
		all = append(all, one)
	}
	return all
}

// current returns the node to which the relay has connected last.
func (c *clustered) current() *services.RabbitMQ {
	all := c.relay.connections()
	newest := all[len(all)-1].Address
	i := slices.IndexFunc(c.nodes, func(n *services.RabbitMQ) bool { return n.Addr() == newest })
	if i < 0 {
		c.t.Fatalf("the relay is connected to %s, which is no node", newest)
	}
	return c.nodes[i]
}

// The node that the relay uses, and that leads the queue, is killed. Then the one that the relay uses is upgraded; with
// stage limits, all are. Nobody consumes meanwhile: RabbitMQ sends messages of a lost consumer again.
func TestAKilledNodeAndARollingUpgradeOfRabbitMQLoseAndReorderNothing(t *testing.T) {
	services.Thorough(t, "starts three brokers, and some of them again")
	t.Parallel()
	c := newClustered(t)
	ctx, node := t.Context(), c.current()
	c.leaves(node, "kill", func() error { return node.Kill(ctx) })
	c.step("start", func() error { return node.Start(ctx) })
	for range sized(1, len(c.nodes)) {
		node = c.current()
		must(t, "wait until the queue can lose the node", node.Upgrade(ctx, "await_online_quorum_plus_one"))
		c.leaves(node, "drain", func() error { return node.Upgrade(ctx, "drain") })
		c.step("stop", func() error { return node.Stop(ctx) })
		c.step("start", func() error { return node.Start(ctx) })
		c.step("revive", func() error { return node.Upgrade(ctx, "revive") })
	}
	c.load.end()
	c.emptied()
	c.load.also(query[string](c.world, `SELECT message_id::text FROM outbox_published WHERE ordering_key IS NOT NULL`))
	arrived := c.consume(c.queue)
	c.load.allArrive(arrived, math.MaxInt)
	c.inOrder(arrived, c.each)
	c.relay.noRejections()
	t.Logf("%d messages, %d of them twice, all marked", arrived.distinct(), arrived.duplicates())
}

// step does something while rows with keys are inserted. Then messages are published.
func (c *clustered) step(name string, do func() error) {
	c.t.Helper()
	const published = "cdc_relay_messages_published_total"
	keys := numbered(fmt.Sprint(len(c.each), " "), 5)
	maps.Copy(c.each, evenly(keys, 100))
	inserting := c.loadKeys(keys, 100, toDefault)
	must(c.t, name, do())
	before := c.relay.metric(published)
	c.eventually("messages are published: "+name, func() bool { return c.relay.metric(published) >= before+300 })
	inserting.Wait()
}

// leaves is a step after which the relay uses another node. It needs at most two attempts for each connection.
func (c *clustered) leaves(node *services.RabbitMQ, name string, do func() error) {
	c.t.Helper()
	before := len(c.relay.connections())
	c.step(name, do)
	since := c.relay.connections()[before:]
	if len(since) == 0 {
		c.t.Errorf("the relay did not connect again without %s", node.Addr())
	}
	for _, one := range since {
		if one.Address == node.Addr() || one.Attempts > 2 {
			c.t.Errorf("the relay connected to %s at attempt %d, and %s is down", one.Address, one.Attempts, node.Addr())
		}
	}
}
