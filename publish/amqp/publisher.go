package amqp

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/outagelog"
	"github.com/cdc-relay/cdc-relay/internal/secret"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/publish/wire"
)

// Config is the configuration for New; only URL or URLFile is required.
type Config struct {
	// URL is an AMQP URI, amqp:// or amqps://. It may name several nodes of a cluster, as in
	// amqp://user:password@a:5672,b:5672, or be several URIs with commas or spaces between them. It holds the
	// password and is never logged. The files of its parameters are read again for each new connection.
	URL string
	// URLFile is a file with the URL, in its place. It is read again for each new connection, so a password may change.
	URLFile string
	// DefaultExchange is used for messages without an exchange; "" is AMQP's default exchange.
	DefaultExchange string
	// MaxInFlight is the most messages without a result; default 2000.
	MaxInFlight int
	// SendTimeout bounds a write to the socket, the wait for a confirm, and the wait for any other answer; default 10
	// s. Time while the broker blocks the connection does not count.
	SendTimeout time.Duration
	// Heartbeat is the interval proposed to the broker; default half of SendTimeout, 2 to 5 s. A peer that is silent
	// for two intervals counts as lost, so an idle standby finds an outage when the leader does. A heartbeat in the URL
	// takes precedence.
	Heartbeat time.Duration
	// TLS is the TLS configuration for amqps://; it replaces the settings of the URL.
	TLS *tls.Config
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.MaxInFlight <= 0 {
		c.MaxInFlight = 2000
	}
	if c.SendTimeout <= 0 {
		c.SendTimeout = 10 * time.Second
	}
	if c.Heartbeat <= 0 {
		c.Heartbeat = min(max(c.SendTimeout/2, 2*time.Second), 5*time.Second)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = event.Limited(c.Logger)
	return c
}

// Publisher publishes to RabbitMQ. Create it with New.
//
// Publish delivers results itself only after Run has returned.
type Publisher struct {
	inbox   *publish.Inbox
	cfg     Config
	address amqpdial.Address
	// suspects and exchanges outlive sessions; only the goroutine of Run uses exchanges.
	suspects  *publish.Suspects
	exchanges map[string]lookUp
	// due is by when Run must have finished what it does, in nanoseconds of Unix time; 0: it waits for messages.
	due atomic.Int64
	// mostBody is that of MostBody.
	mostBody atomic.Int64

	// Only the goroutine of Run uses the fields below.
	state       publish.State
	outages     int  // in a row, without an answer between them
	connections int  // so far
	silent      bool // the last connection ended because RabbitMQ did not answer in time
	trouble     *outagelog.Log
	nodes       nodes // and openFirst, while Run waits for it
	missing     *missing
}

// New checks the configuration; it does not connect. The error does not contain the URL.
func New(cfg Config) (*Publisher, error) {
	cfg = cfg.withDefaults()
	address := amqpdial.Address{Text: secret.Text{Value: cfg.URL, File: cfg.URLFile}}
	if _, err := address.Nodes(); err != nil {
		return nil, err
	}
	if len(cfg.DefaultExchange) > wire.LongestShortString {
		return nil, fmt.Errorf("the exchange name has %d bytes, AMQP allows %d",
			len(cfg.DefaultExchange), wire.LongestShortString)
	}
	return &Publisher{
		inbox:     publish.NewInbox(),
		cfg:       cfg,
		address:   address,
		suspects:  publish.NewSuspects(),
		exchanges: make(map[string]lookUp),
		trouble:   outagelog.NewPlain(cfg.Logger),
		nodes:     make(nodes),
	}, nil
}

// Run implements publish.Publisher: it connects and publishes until ctx is done.
func (p *Publisher) Run(ctx context.Context, sink publish.Sink) error {
	p.missing = newMissing(sink)
	p.inbox.Sink = p.missing
	p.setState(publish.Connecting, "not connected yet")
	for ctx.Err() == nil {
		began := time.Now()
		o, err := p.dial(ctx)
		if err != nil {
			p.dialFailed(ctx, err)
		} else {
			p.connections++
			p.serve(ctx, newSession(p, o))
		}
		// Measured from the start of the last attempt: after one that hung, or a connection that lasted, no pause is
		// needed.
		p.inbox.RejectFor(ctx, reconnectEvery-time.Since(began), noConnection)
	}
	p.inbox.End()
	p.setState(publish.Closed, "stopped")
	return nil
}

// Overdue implements publish.Watched.
func (p *Publisher) Overdue() time.Duration {
	due := p.due.Load()
	if due == 0 {
		return 0
	}
	return max(time.Since(time.Unix(0, due)), 0)
}

// Publish implements publish.Publisher.
func (p *Publisher) Publish(m *outbox.Message) { p.inbox.Publish(m) }

const noConnection = "no connection to RabbitMQ"

// reconnectEvery is the least time between two rounds of attempts to connect, each over all nodes.
const reconnectEvery = 500 * time.Millisecond

func (p *Publisher) dialFailed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	p.trouble.Report(event.BrokerDown, "cannot connect to RabbitMQ: messages wait in the table; retrying", err)
	if p.connections > 0 {
		p.outages++
	}
	p.setDown(err)
}

// outagesToOpen is how many outages in a row open the breaker.
const outagesToOpen = 2

// setDown sets the state without a connection.
func (p *Publisher) setDown(err error) {
	phase := publish.Connecting
	if p.outages >= outagesToOpen {
		phase = publish.Paused
	}
	p.setState(phase, err.Error())
}

// setState is used in place of that of the inbox: it also reports the breaker, and each new reason.
func (p *Publisher) setState(phase publish.Phase, detail string) {
	next := publish.State{Phase: phase, Since: time.Now(), Detail: detail, Breaker: p.breaker(phase)}
	if p.state.Phase == phase {
		next.Since = p.state.Since // only the reason may have changed
	}
	if next == p.state {
		return
	}
	p.state = next
	p.inbox.Sink.StateChanged(p.state)
}

// breaker names what outages in a row mean: no connection, or few messages until the first answer (see throttle).
func (p *Publisher) breaker(phase publish.Phase) string {
	switch {
	case p.outages < outagesToOpen:
		return "closed"
	case phase == publish.Ready || phase == publish.Blocked:
		return "half_open"
	}
	return "open"
}

// connectionLost counts an outage if messages were unanswered, or if the broker did not answer another call.
func (p *Publisher) connectionLost(s *session, err error) {
	p.trouble.Report(event.BrokerLost, "RabbitMQ connection lost: messages wait in the table; reconnecting", err,
		"address", s.node.Address(), "in_flight", len(s.pending))
	p.nodes.failed(s.node)
	if p.silent || len(s.pending) > 0 {
		p.outages++
	}
	p.setDown(err)
}

func (p *Publisher) cameBack(o opened) {
	args := []any{"address", o.node.Address(), "vhost", o.node.URI.Vhost}
	if o.attempts > 1 {
		args = append(args, "attempts", o.attempts)
	}
	if len(o.failures) > 0 {
		args = append(args, "failed", o.failures.Error())
	}
	if version, ok := o.connection.Properties["version"].(string); ok {
		args = append(args, "version", version)
	}
	if lasted := p.trouble.End(); lasted > 0 {
		p.missing.restored.Store(time.Now().UnixNano())
		args = append(args, "after", lasted)
	}
	p.cfg.Logger.Info("connected to RabbitMQ", append([]any{"event", event.BrokerConnected}, args...)...)
}
