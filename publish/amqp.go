package publish

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// AMQPConfig is what NewAMQP needs; only URL is required.
type AMQPConfig struct {
	// URL is an AMQP URI, amqp:// or amqps://. It holds the password and is never
	// logged.
	URL string
	// DefaultExchange stands in for messages that name none; "" is AMQP's own
	// default exchange.
	DefaultExchange string
	// MaxInFlight is the most messages without a result; default 2000.
	MaxInFlight int
	// SendTimeout bounds a write to the socket, the wait for a confirm (time in which
	// the connection is blocked does not count) and for any other answer; default 10 s.
	SendTimeout time.Duration
	// OutageCooldown is how long the breaker stays open where no connection comes
	// sooner; default 30 s.
	OutageCooldown time.Duration
	// Heartbeat is the interval that is proposed to the broker; a peer that is silent
	// for two intervals is gone. Default 10 s; heartbeat in the URL goes before it.
	Heartbeat time.Duration
	// TLS is used for amqps:// instead of what the URL says.
	TLS *tls.Config
	// Logger default is slog.Default().
	Logger *slog.Logger
}

func (c AMQPConfig) withDefaults() AMQPConfig {
	if c.MaxInFlight <= 0 {
		c.MaxInFlight = 2000
	}
	if c.SendTimeout <= 0 {
		c.SendTimeout = 10 * time.Second
	}
	if c.OutageCooldown <= 0 {
		c.OutageCooldown = 30 * time.Second
	}
	if c.Heartbeat <= 0 {
		c.Heartbeat = 10 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// AMQP publishes to RabbitMQ with publisher confirms. Make it with NewAMQP.
//
// While Run works, results are never delivered from within Publish; after it has
// returned they are.
type AMQP struct {
	cfg    AMQPConfig
	uri    amqp.URI
	limits limits
	in     *mailbox[*outbox.Message]
	// alone is kept by the sessions.
	alone *aloneList

	mu    sync.Mutex
	ended bool // Run will take nothing more from in
	// sink is set when Run starts, before ended can hold.
	sink Sink

	// These belong to the goroutine of Run.
	breaker   breaker
	state     State
	connected bool      // at least once
	awaySince time.Time // zero while connected
	complaint time.Time // when the newest failure to connect was logged
}

// NewAMQP checks the configuration; it connects to nothing. The error does not
// hold the URL.
func NewAMQP(cfg AMQPConfig) (*AMQP, error) {
	cfg = cfg.withDefaults()
	uri, err := parseURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	if len(cfg.DefaultExchange) > longestShortString {
		return nil, fmt.Errorf("the exchange name has %d bytes, AMQP takes %d", len(cfg.DefaultExchange), longestShortString)
	}
	return &AMQP{
		cfg: cfg, uri: uri, in: newMailbox[*outbox.Message](), alone: newAloneList(),
		limits:  limits{defaultExchange: cfg.DefaultExchange, login: uri.Username},
		breaker: breaker{cooldown: cfg.OutageCooldown},
	}, nil
}

// Publish hands a message over; see Publisher.
func (p *AMQP) Publish(m *outbox.Message) {
	p.mu.Lock()
	ended := p.ended
	if !ended {
		p.in.add(m)
	}
	p.mu.Unlock()
	if ended {
		p.sink.Deliver(outbox.Result{Message: m, Outcome: outbox.NotSent, Detail: "the publisher has stopped"})
		return
	}
	p.in.signal()
}

// Run connects and publishes until ctx is done; see Publisher.
func (p *AMQP) Run(ctx context.Context, sink Sink) error {
	p.sink = sink
	p.setState(Connecting, "not connected yet")
	for ctx.Err() == nil {
		began := time.Now()
		o, err := p.dial(ctx)
		if err != nil {
			p.dialFailed(ctx, err)
		} else {
			p.serve(ctx, newSession(p, o))
		}
		// From the beginning of the last attempt: one that hung, or a connection that lasted, needs no pause.
		p.wait(ctx, reconnectEvery-time.Since(began))
	}
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.rejectAll("the publisher has stopped")
	p.setState(Closed, "stopped")
	return nil
}

// reconnectEvery is the least time between two attempts to connect.
const reconnectEvery = 500 * time.Millisecond

// serve runs one session.
func (p *AMQP) serve(ctx context.Context, s *session) {
	p.breaker.connected()
	p.cameBack(s)
	p.setState(Ready, "")
	s.run(ctx, p.breaker.state == breakerHalfOpen)
}

func (p *AMQP) brokerAnswered() {
	p.breaker.answered()
	p.setState(p.state.Phase, p.state.Detail)
}

func (p *AMQP) brokerBlocked(reason string) {
	p.cfg.Logger.Warn("broker blocked the connection: publishing pauses", "event", event.BrokerBlocked, "reason", reason)
	p.setState(Blocked, "connection.blocked: "+reason)
}

func (p *AMQP) brokerUnblocked() {
	p.cfg.Logger.Info("broker unblocked the connection: publishing resumes", "event", event.BrokerUnblocked)
	p.setState(Ready, "")
}

// connectionLost counts an outage if messages have no answer, or the broker gave none to
// anything else.
func (p *AMQP) connectionLost(s *session, err error) {
	if s.heard.Load() {
		p.breaker.answered()
	}
	now := time.Now()
	p.awaySince, p.complaint = now, now
	p.cfg.Logger.Warn("broker connection lost: reconnecting", "event", event.BrokerLost, "error", err, "in_flight", s.inFlight.Load())
	if errors.As(err, new(*noAnswer)) || s.inFlight.Load() > 0 {
		p.breaker.outage(now)
	}
	p.setAway(err)
}

func (p *AMQP) dialFailed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	const complainEvery = time.Minute
	now := time.Now()
	if p.awaySince.IsZero() {
		p.awaySince = now
	}
	if now.Sub(p.complaint) > complainEvery {
		p.complaint = now
		p.cfg.Logger.Warn("cannot connect to the broker: retrying", "event", event.BrokerDown, "error", err, "for", now.Sub(p.awaySince).Round(time.Second))
	}
	if p.connected {
		p.breaker.outage(now)
	}
	p.setAway(err)
}

// setAway is the state without a connection.
func (p *AMQP) setAway(err error) {
	if p.breaker.state == breakerOpen {
		p.setState(Paused, err.Error())
		return
	}
	p.setState(Connecting, err.Error())
}

func (p *AMQP) cameBack(s *session) {
	args := []any{"address", net.JoinHostPort(p.uri.Host, strconv.Itoa(p.uri.Port)), "vhost", p.uri.Vhost}
	if version, ok := s.connection.Properties["version"].(string); ok {
		args = append(args, "version", version)
	}
	if !p.awaySince.IsZero() {
		args = append(args, "after", time.Since(p.awaySince).Round(time.Millisecond))
	}
	p.cfg.Logger.Info("connected to the broker", append([]any{"event", event.BrokerConnected}, args...)...)
	p.connected, p.awaySince, p.complaint = true, time.Time{}, time.Time{}
}

func (p *AMQP) setState(phase Phase, detail string) {
	next := State{Phase: phase, Since: time.Now(), Detail: detail, Breaker: p.breaker.state.String()}
	if p.state.Phase == phase {
		next.Since = p.state.Since // at most why it stays there has changed
	}
	if next == p.state {
		return
	}
	p.state = next
	p.sink.StateChanged(p.state)
}

// rejectAll reports what was published while there is no connection.
func (p *AMQP) rejectAll(why string) {
	for _, m := range p.in.take(nil) {
		p.sink.Deliver(outbox.Result{Message: m, Outcome: outbox.NotSent, Detail: why})
	}
}

// wait lets d pass, or less where ctx is done. What is published meanwhile comes
// back at once.
func (p *AMQP) wait(ctx context.Context, d time.Duration) {
	p.attend(ctx, time.After(d), nil)
}

// attend rejects messages until one of the channels has something.
func (p *AMQP) attend(ctx context.Context, over <-chan time.Time, done <-chan struct{}) {
	const look = time.Second // at the breaker's cooldown
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		p.rejectAll("no connection to the broker")
		select {
		case <-ctx.Done():
			return
		case <-over:
			return
		case <-done:
			return
		case <-p.in.wake:
		case now := <-tick.C:
			p.breaker.tick(now)
			if p.state.Phase == Paused && p.breaker.state == breakerHalfOpen {
				p.setState(Connecting, p.state.Detail)
			}
		}
	}
}
