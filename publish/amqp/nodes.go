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

// headStart is how long a node may take to accept a connection before the next one is tried as well. Otherwise a node
// that is frozen or cut off would delay all messages until its time limit. An attempt that is only slow is not ended,
// so slow nodes are still connected to.
const headStart = 300 * time.Millisecond

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

// attempt is the end of one attempt to connect.
type attempt struct {
	opened
	number int // of the node in the list
	err    error
}

// openFirst connects to the first node that accepts. It begins with the next node when one has failed, and after the
// head start. It returns an error when all have failed, and nothing of it runs after its return.
func (p *Publisher) openFirst(ctx context.Context, list []amqpdial.Node) (opened, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan attempt)
	begun := 0
	var failures noNode
	for len(failures) < len(list) {
		var next <-chan time.Time // nil if all have begun
		if number := begun; number < len(list) {
			go func() { ended <- p.attempt(ctx, list[number], number) }()
			begun++
			next = time.After(headStart)
		}
		select {
		case <-next:
		case a := <-ended:
			if a.err != nil {
				p.nodes.failed(list[a.number])
				failures = append(failures, a.err)
				continue
			}
			cancel()
			for range begun - len(failures) - 1 {
				if slower := <-ended; slower.err == nil {
					_ = slower.socket.Close() // else the library would wait for an answer
					_ = slower.connection.Close()
				}
			}
			for _, slower := range list[:a.number] {
				p.nodes.failed(slower)
			}
			delete(p.nodes, a.node.Address())
			a.attempts, a.failures = begun, failures
			return a.opened, nil
		}
	}
	return opened{}, failures.sorted()
}

// attempt tries one node within the dial timeout.
func (p *Publisher) attempt(ctx context.Context, node amqpdial.Node, number int) attempt {
	ctx, cancel := context.WithTimeout(ctx, p.dialTimeout(node))
	defer cancel()
	o, err := p.open(ctx, node)
	if err != nil {
		return attempt{number: number, err: p.address.Explain(node, err)}
	}
	return attempt{opened: o, number: number}
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
