package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// clustered is a world with a cluster of RabbitMQ. Its relays know all nodes.
type clustered struct {
	*world
	cluster *services.RabbitMQCluster
	vhost   string
	// record has every message, and nobody consumes it during the load: a consumer that loses its connection gets
	// messages again, which the relay has sent once.
	record string
}

// exchangeOfAll leads to both queues.
const exchangeOfAll = "to-all"

func newClustered(t *testing.T) *clustered {
	t.Helper()
	cluster := services.PrivateRabbitMQCluster(t, 3)
	first := cluster.Nodes[0]
	c := &clustered{cluster: cluster, vhost: services.Name(t), record: services.Name(t)}
	must(t, "add a virtual host", first.AddVHost(t.Context(), c.vhost))
	c.world = newWorldOn(t, services.Database(t), first.URL(c.vhost))
	hosts := make([]string, len(cluster.Nodes))
	for i, node := range cluster.Nodes {
		hosts[i] = node.Addr()
	}
	c.settings = []string{
		"CDC_RELAY_AMQP_URL=" + strings.Replace(c.broker, first.Addr(), strings.Join(hosts, ","), 1),
		"CDC_RELAY_EXCHANGE=" + exchangeOfAll, "CDC_RELAY_KEEP_PUBLISHED=1h",
	}
	c.succeeds("setup")
	return c
}

// declare creates two quorum queues with a member on each node. The node that the relay uses leads them.
func (c *clustered) declare(r *relay) {
	c.t.Helper()
	c.broker = c.cluster.Nodes[c.current(r)].URL(c.vhost)
	channel := c.channel()
	must(c.t, "declare the exchange",
		channel.ExchangeDeclare(exchangeOfAll, amqp.ExchangeFanout, true, false, false, false, nil))
	for _, queue := range []string{c.queue, c.record} {
		c.declareQueue(queue, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum})
		must(c.t, "bind the queue", channel.QueueBind(queue, "", exchangeOfAll, false, nil))
	}
}

// follow consumes a queue from any node that answers, until the test ends.
func (c *clustered) follow(queue string) *ledger {
	l := newLedger(c.t, queue)
	c.ledgers = append(c.ledgers, l)
	ctx, stop := context.WithCancel(c.t.Context())
	var following sync.WaitGroup
	following.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			l.followOne(ctx, c.cluster.Nodes[i%len(c.cluster.Nodes)].URL(c.vhost))
		}
	})
	c.t.Cleanup(func() { stop(); following.Wait() })
	return l
}

// followOne records what arrives through one node, until the connection ends.
func (l *ledger) followOne(ctx context.Context, url string) {
	conn, err := amqp.DialConfig(url, amqp.Config{Heartbeat: time.Minute, Dial: amqp.DefaultDial(time.Second)})
	if err != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer conn.Close()
	channel, err := conn.Channel()
	if err != nil || channel.Qos(200, 0, false) != nil {
		return
	}
	deliveries, err := channel.ConsumeWithContext(ctx, l.queue, "", false, false, false, false, nil)
	if err != nil {
		return
	}
	for d := range deliveries {
		if !d.Redelivered || l.count(d.MessageId) == 0 {
			l.add(d)
		}
		_ = d.Ack(false)
	}
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

// current returns the index of the node to which the relay has connected last.
func (c *clustered) current(r *relay) int {
	all := r.connections()
	newest := all[len(all)-1].Address
	i := slices.IndexFunc(c.cluster.Nodes, func(n *services.RabbitMQ) bool { return n.Addr() == newest })
	if i < 0 {
		c.t.Fatalf("the relay is connected to %s, which is no node", newest)
	}
	return i
}

// The node that the relay uses, and that leads the queues, is killed. Then the one that the relay uses is upgraded; with
// stage limits, all are.
func TestAKilledNodeAndARollingUpgradeOfRabbitMQLoseAndReorderNothing(t *testing.T) {
	services.Thorough(t, "starts three brokers, and some of them again")
	t.Parallel()
	c := newClustered(t)
	r := c.run()
	c.declare(r)
	arrived := c.follow(c.queue)
	load := c.writeNumbered(numbered("k", 10), 3, 1)
	c.moreArrive(arrived, 300)
	c.kill(r, arrived)
	for range sized(1, len(c.cluster.Nodes)) {
		c.upgrade(r, arrived)
	}
	each := load.end()
	c.emptied()
	c.noDeadLetters()
	r.noRejections()
	all := c.consume(c.record)
	c.eventually("all committed messages are in the queue", func() bool { return all.distinct() >= total(each) })
	c.eventually("all committed messages arrive", func() bool { return arrived.distinct() >= total(each) })
	c.inOrder(all, each)
	all.allMarked()
	t.Logf("%d messages, %d of them twice, all marked; %d connections, %d lost, %d failed to connect",
		total(each), all.duplicates(), len(r.connections()),
		len(linesWith(r.logs(), `"broker_lost"`)), len(linesWith(r.logs(), `"broker_down"`)))
}

// kill ends the node that the relay uses without a warning, and starts it again.
func (c *clustered) kill(r *relay, arrived *ledger) {
	c.t.Helper()
	ctx := c.t.Context()
	i, before := c.current(r), len(r.connections())
	node := c.cluster.Nodes[i]
	c.step(i, "kill", arrived, func() { must(c.t, "kill", node.Kill(ctx)); c.moreArrive(arrived, 300) })
	c.movedFrom(node, r, before)
	c.step(i, "start", arrived, func() { must(c.t, "start", node.Start(ctx)); c.moreArrive(arrived, 300) })
}

// upgrade drains the node that the relay uses, stops it, starts it and revives it. The others serve the relay meanwhile.
func (c *clustered) upgrade(r *relay, arrived *ledger) {
	c.t.Helper()
	ctx := c.t.Context()
	i, before := c.current(r), len(r.connections())
	node := c.cluster.Nodes[i]
	must(c.t, "wait until the queues can lose the node", node.Upgrade(ctx, "await_online_quorum_plus_one"))
	c.step(i, "drain", arrived, func() { must(c.t, "drain", node.Upgrade(ctx, "drain")); c.moreArrive(arrived, 300) })
	c.movedFrom(node, r, before)
	c.step(i, "stop", arrived, func() { must(c.t, "stop", node.Stop(ctx)); c.moreArrive(arrived, 300) })
	c.step(i, "start", arrived, func() { must(c.t, "start", node.Start(ctx)); c.moreArrive(arrived, 300) })
	c.step(i, "revive", arrived, func() { must(c.t, "revive", node.Upgrade(ctx, "revive")); c.moreArrive(arrived, 300) })
}

// movedFrom checks that the relay has left a node, and needed at most two attempts for each new connection.
func (c *clustered) movedFrom(node *services.RabbitMQ, r *relay, before int) {
	c.t.Helper()
	since := r.connections()[before:]
	if len(since) == 0 {
		c.t.Errorf("the relay did not connect again without %s", node.Addr())
	}
	for _, one := range since {
		if one.Address == node.Addr() || one.Attempts > 2 {
			c.t.Errorf("the relay connected to %s at attempt %d, and %s is down", one.Address, one.Attempts, node.Addr())
		}
	}
}

// step reports the longest silence during a step: between two confirms that the relay received, and between two messages
// that a consumer received.
func (c *clustered) step(node int, name string, arrived *ledger, do func()) {
	c.t.Helper()
	began := value[time.Time](c.world, `SELECT clock_timestamp()`)
	arrived.restartGap()
	do()
	confirms := value[float64](c.world, `SELECT coalesce(max(extract(epoch FROM published_at - before)), 0)::float8
		FROM (SELECT published_at, lag(published_at, 1, $1) OVER (ORDER BY published_at) AS before
			FROM outbox_published WHERE published_at >= $1) p`, began)
	c.t.Logf("node %d, %s: took %s, longest silence of confirms %.3f s, of deliveries %s", node+1, name,
		value[string](c.world, `SELECT to_char(clock_timestamp() - $1, 'SS.MS') || ' s'`, began), confirms,
		arrived.longestGap().Round(time.Millisecond))
}

func (c *clustered) moreArrive(arrived *ledger, n int) {
	c.t.Helper()
	before := arrived.distinct()
	c.eventually(fmt.Sprintf("%d more messages arrive", n), func() bool { return arrived.distinct() >= before+n })
}

// numberedRows inserts rows until it is stopped: some with ordering keys, in order, and some without.
type numberedRows struct {
	w    *world
	stop context.CancelFunc
	done sync.WaitGroup
	last map[string]int // the last number of each writer's key
	err  error
}

// free stands for the rows without an ordering key.
const free = "free"

// writeNumbered inserts rows of the next key and some without a key, every 10 ms.
func (w *world) writeNumbered(keys []string, ofKey, ofNone int) *numberedRows {
	ctx, stop := context.WithCancel(w.t.Context())
	n := &numberedRows{w: w, stop: stop, last: make(map[string]int)}
	n.done.Go(func() {
		pace := time.NewTicker(10 * time.Millisecond)
		defer pace.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			key := keys[i%len(keys)]
			if n.err = n.insert(key, 1+i%ofKey, key); n.err == nil {
				n.err = n.insert(free, ofNone, nil)
			}
			if n.err != nil {
				return
			}
			<-pace.C
		}
	})
	w.t.Cleanup(func() { n.stop(); n.done.Wait() })
	return n
}

func (n *numberedRows) insert(counted string, rows int, key any) error {
	from := n.last[counted] + 1
	_, err := n.w.db.Exec(context.Background(), `INSERT INTO outbox (routing_key, ordering_key, payload)
		SELECT $1, $2, json_build_object('k', $3::text, 'n', n) FROM generate_series($4::int, $5::int) n ORDER BY n`,
		n.w.queue, key, counted, from, from+rows-1)
	n.last[counted] += rows
	return err
}

func (n *numberedRows) end() map[string]int {
	n.w.t.Helper()
	n.stop()
	n.done.Wait()
	if n.err != nil {
		n.w.t.Fatal(n.err)
	}
	return n.last
}

func total(each map[string]int) (n int) {
	for _, rows := range each {
		n += rows
	}
	return n
}
