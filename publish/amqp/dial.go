package amqp

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
)

// opened is a new connection.
type opened struct {
	node       amqpdial.Node
	connection *amqp091.Connection
	socket     *socket
	clock      *clock

	others []amqpdial.Node // of the address

	attempts int    // to connect, until this one; of one round over all nodes
	failures noNode // why other nodes took no connection in this round
}

// dial opens a connection to one of the nodes. Messages published meanwhile are NotSent.
func (p *Publisher) dial(ctx context.Context) (o opened, err error) {
	list, err := p.address.Nodes()
	if err != nil {
		return opened{}, p.address.Unread(err)
	}
	var longest time.Duration
	for _, node := range list {
		longest = max(longest, p.dialTimeout(node))
	}
	p.due.Store(time.Now().Add(2 * longest).UnixNano())
	defer p.due.Store(0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		o, err = p.openFirst(ctx, p.nodes.order(list))
		o.others = slices.DeleteFunc(list, func(n amqpdial.Node) bool { return n.Address() == o.node.Address() })
	}()
	p.inbox.RejectUntil(done, noConnection)
	return o, err
}

// open makes one attempt to connect, until ctx is done.
func (p *Publisher) open(ctx context.Context, node amqpdial.Node) (opened, error) {
	o := opened{node: node, clock: newClock()}
	stop := func() bool { return true }
	config := p.clientConfig()
	config.Dial = func(network, addr string) (net.Conn, error) {
		s, err := dialSocket(ctx, network, addr, p.acceptTimeout(node), p.cfg.SendTimeout, o.clock)
		if err != nil {
			return nil, err
		}
		o.socket = s
		stop = context.AfterFunc(ctx, func() { _ = s.Close() }) // ends the handshake
		return s, nil
	}
	var err error
	o.connection, err = node.Dial(config, p.cfg.TLS)
	if !stop() {
		if err == nil {
			_ = o.connection.Close()
		}
		err = &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
	}
	if err == nil {
		err = o.socket.established(2 * o.connection.Config.Heartbeat)
	}
	if err != nil && o.socket != nil {
		_ = o.socket.Close()
	}
	return o, err
}

// dialTimeout bounds connecting, with the handshake.
func (p *Publisher) dialTimeout(node amqpdial.Node) time.Duration {
	if ms := node.URI.ConnectionTimeout; ms > 0 {
		return time.Duration(ms) * time.Millisecond
	}
	return p.cfg.SendTimeout
}

// acceptTimeout bounds the TCP connect. The kernel repeats the SYN after one second and then ever later, so a new
// attempt finds a returned host earlier.
func (p *Publisher) acceptTimeout(node amqpdial.Node) time.Duration {
	const usual = 2 * time.Second
	if node.URI.ConnectionTimeout > 0 {
		return p.dialTimeout(node)
	}
	return usual
}

func (p *Publisher) clientConfig() amqp091.Config {
	properties := amqp091.NewConnectionProperties()
	properties["product"] = "cdc-relay"
	name := "cdc-relay"
	if host, err := os.Hostname(); err == nil {
		name = fmt.Sprintf("cdc-relay %s/%d", host, os.Getpid())
	}
	properties.SetClientConnectionName(name)
	return amqp091.Config{Heartbeat: p.cfg.Heartbeat, Properties: properties}
}
