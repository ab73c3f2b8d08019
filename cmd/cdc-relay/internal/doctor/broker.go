package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
)

// brokerFacts are what AMQP and the management API report.
type brokerFacts struct {
	// unreachable is why no node takes a connection; nil: at least one does, and the other facts are from the first.
	unreachable *amqpdial.DialError
	// nodes are all nodes, if there are several.
	nodes       []nodeFacts
	address     string
	vhost, user string
	version     string
	encryption  encryption
	// alarm is why the broker accepts no messages; "": there is no alarm.
	alarm string
	// asked are the destinations that were checked; left is how many were not.
	asked []destination
	left  int
	// exchanges by name, without the default exchange. 404: there is none. After any other error, it is unknown.
	exchanges map[string]error // nil: it exists
	// queues are the queues that rows name through the default exchange, with the same errors.
	queues map[string]error
	// writes are the rejections of test messages, by destination.
	writes map[destination]error
	// broken is the error that ended the check early.
	broken error

	management managementFacts
}

// gatherBroker collects the facts for these destinations.
func (o Options) gatherBroker(ctx context.Context, wanted []destination) *brokerFacts {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	f := &brokerFacts{exchanges: map[string]error{}, queues: map[string]error{}, writes: map[destination]error{}}
	f.asked = wanted[:min(len(wanted), mostDestinations)]
	f.left = len(wanted) - len(f.asked)
	nodes, err := o.RabbitMQ.Nodes()
	if err != nil {
		f.unreachable = o.RabbitMQ.Unread(err)
		return f
	}
	all := o.dialNodes(ctx, nodes)
	used := all[0]
	for _, one := range slices.Backward(all) {
		if one.unreachable == nil {
			defer one.probe.close()
			used = one
		}
	}
	if len(all) > 1 {
		f.nodes = all
	}
	uri := used.URI
	f.address, f.vhost, f.user = used.Address(), uri.Vhost, uri.Username
	ip := net.ParseIP(uri.Host)
	f.encryption.local = uri.Host == "localhost" || ip != nil && ip.IsLoopback()
	if f.unreachable = used.unreachable; f.unreachable != nil {
		return f
	}
	p := used.probe
	f.version = used.version
	if uri.Scheme == "amqps" {
		state := p.conn.ConnectionState()
		f.encryption.tls, f.encryption.verified = &state, len(state.VerifiedChains) > 0
	}
	f.askExistence(p, o)
	if !o.NoProbe {
		f.askWrites(ctx, p, o)
	}
	f.management = o.gatherManagement(ctx, used.Node, f)
	return f
}

// nodeFacts are what one node of RabbitMQ answers to a login.
type nodeFacts struct {
	amqpdial.Node
	version     string
	unreachable *amqpdial.DialError // nil: it takes connections
	probe       *amqpProbe          // its connection, which gatherBroker closes
}

// dialNodes connects to all nodes at the same time, because a silent one takes half of the time limit.
func (o Options) dialNodes(ctx context.Context, nodes []amqpdial.Node) []nodeFacts {
	all := make([]nodeFacts, len(nodes))
	var dialling sync.WaitGroup
	for i, node := range nodes {
		dialling.Go(func() {
			all[i].Node = node
			conn, socket, err := o.dialBroker(ctx, node)
			if err != nil {
				all[i].unreachable = o.RabbitMQ.Explain(node, err)
				return
			}
			all[i].version, _ = conn.Properties["version"].(string)
			all[i].probe = &amqpProbe{
				conn: conn, socket: socket, blocked: conn.NotifyBlocked(make(chan amqp091.Blocking, 8)),
			}
		})
	}
	dialling.Wait()
	return all
}

// dialBroker connects. It cuts the connection as soon as ctx is done.
func (o Options) dialBroker(ctx context.Context, node amqpdial.Node) (*amqp091.Connection, net.Conn, error) {
	var socket net.Conn
	properties := amqp091.NewConnectionProperties()
	properties["product"] = "cdc-relay"
	name := "cdc-relay check"
	if host, err := os.Hostname(); err == nil {
		name = fmt.Sprintf("cdc-relay check %s/%d", host, os.Getpid())
	}
	properties.SetClientConnectionName(name)
	config := amqp091.Config{
		Heartbeat: 10 * time.Second, Properties: properties,
		Dial: func(network, address string) (net.Conn, error) {
			conn, err := amqpdial.DialHost(ctx, network, address, o.timeout/2)
			if err != nil {
				return nil, err
			}
			context.AfterFunc(ctx, func() { _ = conn.Close() })
			socket = conn
			// The library removes the deadline after the handshake.
			return conn, conn.SetDeadline(time.Now().Add(o.timeout / 2))
		},
	}
	conn, err := node.Dial(config, o.TLS)
	return conn, socket, err
}

// written returns the destinations to which the user must be able to publish.
func (o Options) written(asked []destination) []destination {
	all := slices.Clone(asked)
	if len(all) == 0 {
		all = append(all, destination{exchange: o.Exchange, named: true})
	}
	if o.EventsExchange != "" {
		all = append(all, destination{exchange: o.EventsExchange, named: true})
	}
	return all
}

// exchangesOf returns the exchanges of the rows, of --exchange and of --events-exchange, without the default exchange.
func (o Options) exchangesOf(wanted []destination) []string {
	seen := map[string]bool{"": true}
	var names []string
	named := []destination{{exchange: o.Exchange}, {exchange: o.EventsExchange}}
	for _, d := range append(named, wanted...) {
		if !seen[d.exchange] {
			seen[d.exchange] = true
			names = append(names, d.exchange)
		}
	}
	return names
}

// askExistence uses passive declares: they create nothing, and need no permission, except in some versions of RabbitMQ.
func (f *brokerFacts) askExistence(p *amqpProbe, o Options) {
	for _, name := range o.exchangesOf(f.asked) {
		err := p.exchange(name)
		if f.broken = p.fatal(err); f.broken != nil {
			return
		}
		f.exchanges[name] = err
	}
	for _, d := range f.asked {
		if d.exchange != "" || d.reply() {
			continue
		}
		err := p.queue(d.routingKey)
		if f.broken = p.fatal(err); f.broken != nil {
			return
		}
		f.queues[d.routingKey] = err
	}
}

// askWrites publishes in a transaction that is rolled back; see amqpProbe.take.
func (f *brokerFacts) askWrites(ctx context.Context, p *amqpProbe, o Options) {
	for _, d := range o.written(f.asked) {
		if f.broken != nil {
			return
		}
		if d.exchange == "" {
			d.routingKey = "" // the key does not matter, and a direct reply would be delivered
		}
		if _, done := f.writes[d]; done || isNotFound(f.exchanges[d.exchange]) {
			continue
		}
		err := p.take(ctx, d)
		if errors.Is(err, errBlocked) {
			f.alarm = err.Error()
			return
		}
		if f.broken = p.fatal(err); f.broken != nil {
			return
		}
		f.wrote(d, err)
	}
}

// wrote records the answer to a test message. It also says whether the exchange exists, if the look-up was rejected.
func (f *brokerFacts) wrote(d destination, err error) {
	f.writes[d] = err
	if isNotFound(err) {
		f.exchanges[d.exchange] = err
	}
}
