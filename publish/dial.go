package publish

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// parseURL reads an AMQP URI. Its errors quote nothing of it: what looks like a
// host or a port may be part of a password that was not percent-encoded.
func parseURL(raw string) (amqp.URI, error) {
	const hint = "reserved characters in the user name or password must be percent-encoded, e.g. %40 for @"
	uri, err := amqp.ParseURI(raw)
	var parse *url.Error
	switch {
	case errors.As(err, &parse):
		return uri, fmt.Errorf("the AMQP URL is not a valid URL; %s", hint)
	case err != nil:
		return uri, fmt.Errorf("read AMQP URL: %w", err)
	}
	// The library has parsed it without an error.
	if u, _ := url.Parse(raw); u.User == nil && strings.Contains(u.Path, "@") {
		return uri, fmt.Errorf("the AMQP URL has an @ after the host; %s", hint)
	}
	return uri, nil
}

// dial opens a connection, at the latest within the send timeout.
func (p *AMQP) dial(ctx context.Context) (*amqp.Connection, *socket, *clock, error) {
	ctx, cancel := context.WithTimeout(ctx, p.dialTimeout())
	defer cancel()
	var connection *amqp.Connection
	var err error
	c := newClock()
	d := &dialer{writeTimeout: p.cfg.SendTimeout, clock: c}
	done := make(chan struct{})
	go func() {
		defer close(done)
		connection, err = amqp.DialConfig(p.cfg.URL, p.clientConfig(ctx, d))
	}()
	p.attend(ctx, nil, done)
	if ctx.Err() != nil {
		d.close() // ends the handshake
	}
	<-done
	if err == nil {
		err = d.established(2 * connection.Config.Heartbeat)
	}
	if err != nil {
		d.close()
		return nil, nil, nil, err
	}
	return connection, d.socket, c, nil
}

func (p *AMQP) dialTimeout() time.Duration {
	if ms := p.uri.ConnectionTimeout; ms > 0 {
		return time.Duration(ms) * time.Millisecond
	}
	return p.cfg.SendTimeout
}

func (p *AMQP) clientConfig(ctx context.Context, d *dialer) amqp.Config {
	properties := amqp.NewConnectionProperties()
	properties["product"] = "cdc-relay"
	name := "cdc-relay"
	if host, err := os.Hostname(); err == nil {
		name = fmt.Sprintf("cdc-relay %s/%d", host, os.Getpid())
	}
	properties.SetClientConnectionName(name)
	cfg := amqp.Config{Heartbeat: p.cfg.Heartbeat, Properties: properties, Dial: d.dial(ctx)}
	if p.cfg.TLS != nil {
		cfg.TLSClientConfig = p.cfg.TLS.Clone()
	}
	return cfg
}

// dialer makes the socket of one connection and keeps it for who must close it.
type dialer struct {
	writeTimeout time.Duration
	clock        *clock

	mu     sync.Mutex
	closed bool
	socket *socket
}

// dial is what the library calls; ctx bounds it and the handshake after it.
func (d *dialer) dial(ctx context.Context) func(network, addr string) (net.Conn, error) {
	return func(network, addr string) (net.Conn, error) {
		deadline, _ := ctx.Deadline()
		s, err := dialSocket(ctx, network, addr, deadline, d.writeTimeout, d.clock)
		if err != nil {
			return nil, err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.closed {
			_ = s.Close()
			return nil, net.ErrClosed
		}
		d.socket = s
		return s, nil
	}
}

// established ends the handshake; see socket.established.
func (d *dialer) established(silence time.Duration) error { return d.socket.established(silence) }

// close closes the socket, also one that is still to come.
func (d *dialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.socket != nil {
		_ = d.socket.Close()
	}
}
