package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
)

// brokerFacts are what AMQP and the management API report.
type brokerFacts struct {
	unreachable *amqpdial.DialError
	address     string
	vhost, user string
	version     string
	encryption  encryption
	// alarm is why the broker accepts no messages; "": there is no alarm.
	alarm string
	// asked are the destinations that were checked; left is how many were not.
	asked []destination
	left  int
	// exchanges by name, without the default exchange.
	exchanges map[string]error // nil: it exists
	// queues are the queues that rows name through the default exchange.
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
	node := nodes[0]
	uri := node.URI
	f.address, f.vhost, f.user = node.Address(), uri.Vhost, uri.Username
	ip := net.ParseIP(uri.Host)
	f.encryption.local = uri.Host == "localhost" || ip != nil && ip.IsLoopback()

	conn, socket, err := o.dialBroker(ctx, node)
	if err != nil {
		f.unreachable = o.RabbitMQ.Explain(node, err)
		return f
	}
	p := &amqpProbe{conn: conn, socket: socket, blocked: conn.NotifyBlocked(make(chan amqp091.Blocking, 8))}
	defer p.close()
	f.version, _ = conn.Properties["version"].(string)
	if uri.Scheme == "amqps" {
		state := conn.ConnectionState()
		f.encryption.tls, f.encryption.verified = &state, len(state.VerifiedChains) > 0
	}
	f.askExistence(p, o)
	if !o.NoProbe {
		f.askWrites(ctx, p, o)
	}
	f.management = o.gatherManagement(ctx, node, f)
	return f
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
			conn, err := (&net.Dialer{Timeout: o.timeout / 2}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			context.AfterFunc(ctx, func() { _ = conn.Close() })
			socket = conn
			// The library removes the deadline after the handshake.
			return conn, conn.SetDeadline(time.Now().Add(o.timeout / 2))
		},
	}
	if node.URI.Scheme == "amqps" {
		var err error
		if config.TLSClientConfig, err = node.TLS(o.TLS); err != nil {
			return nil, nil, err
		}
	}
	conn, err := amqp091.DialConfig(node.URL, config)
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

// askExistence uses passive declares: they need no permission and create nothing.
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
		if _, done := f.writes[d]; done || f.exchanges[d.exchange] != nil {
			continue
		}
		err := p.take(ctx, d)
		if errors.Is(err, errBlocked) {
			f.alarm = err.Error()
			return
		}
		if f.broken = p.fatal(err); f.broken == nil {
			f.writes[d] = err
		}
	}
}
