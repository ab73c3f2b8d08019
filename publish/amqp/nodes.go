package amqp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
)

// nodes remembers when nodes of RabbitMQ have failed, by address, until they accept a connection. It has one owner and
// no lock.
type nodes map[string]time.Time

// order returns the nodes in the order in which to try them: first those that have not failed, in random order, so that
// several relays spread over the cluster. The others follow, beginning with the oldest failure.
func (n nodes) order(all []amqpdial.Node) []amqpdial.Node {
	ordered := slices.Clone(all)
	rand.Shuffle(len(ordered), func(i, j int) { ordered[i], ordered[j] = ordered[j], ordered[i] })
	slices.SortStableFunc(ordered, func(a, b amqpdial.Node) int {
		return n[a.Address()].Compare(n[b.Address()]) // without a failure it is the zero time
	})
	return ordered
}

// failed records that a node accepts no connection, is slower than another, or that its connection was lost.
func (n nodes) failed(node amqpdial.Node) { n[node.Address()] = time.Now() }

// openFirst connects to the first node that accepts, and remembers those that failed or were slower. It returns an
// error when all have failed.
func (p *Publisher) openFirst(ctx context.Context, list []amqpdial.Node) (opened, error) {
	o, number, errs := amqpdial.Race(ctx, len(list), amqpdial.HeadStart,
		func(ctx context.Context, i int) (opened, error) { return p.attempt(ctx, list[i]) },
		func(slower opened) {
			_ = slower.socket.Close() // else the library would wait for an answer
			_ = slower.connection.Close()
		})
	o.attempts = len(errs)
	for i, err := range errs {
		if err != nil {
			o.failures = append(o.failures, err)
		}
		if err != nil || i < number {
			p.nodes.failed(list[i])
		}
	}
	if number < 0 {
		return opened{}, o.failures.sorted()
	}
	delete(p.nodes, o.node.Address())
	return o, nil
}

// attempt tries one node within the dial timeout.
func (p *Publisher) attempt(ctx context.Context, node amqpdial.Node) (opened, error) {
	ctx, cancel := context.WithTimeout(ctx, p.dialTimeout(node))
	defer cancel()
	o, err := p.open(ctx, node)
	if err != nil {
		return opened{}, p.address.Explain(node, err)
	}
	return o, nil
}

// noNode is why nodes accept no connection.
type noNode []error

func (e noNode) Error() string {
	var texts []string
	for _, err := range e {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

// Unwrap makes the hint of the first error that of all.
func (e noNode) Unwrap() []error { return e }

// sorted puts nodes that answered before nodes that cannot be reached, because a rejected login stays until somebody
// corrects it. The order is the same in each round, so that the log repeats nothing.
func (e noNode) sorted() error {
	unreachable := func(err error) int {
		var failed *amqpdial.DialError
		if errors.As(err, &failed) && failed.Part != "reachable" {
			return 0
		}
		return 1
	}
	slices.SortFunc(e, func(a, b error) int {
		return cmp.Or(cmp.Compare(unreachable(a), unreachable(b)), cmp.Compare(a.Error(), b.Error()))
	})
	return e
}

// opened is a new connection.
type opened struct {
	node       amqpdial.Node
	connection *amqp091.Connection
	socket     *socket

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
	o := opened{node: node}
	stop := func() bool { return true }
	config := p.clientConfig()
	config.Dial = func(network, addr string) (net.Conn, error) {
		s, err := dialSocket(ctx, network, addr, p.acceptTimeout(node), p.cfg.SendTimeout)
		if err != nil {
			return nil, err
		}
		o.socket = s
		stop = context.AfterFunc(ctx, func() { _ = s.Close() }) // ends the handshake
		return s, nil
	}
	var err error
	o.connection, err = node.DialWith(config, p.cfg.TLS, newZeros)
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
