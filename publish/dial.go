package publish

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/hedge"
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

// opened is a connection that was just opened.
type opened struct {
	connection *amqp.Connection
	socket     *socket
	clock      *clock
}

// discard closes a connection that is not wanted.
func (o opened) discard() {
	_ = o.socket.Close()
	_ = o.connection.Close()
}

// dial opens a connection, at the latest within the send timeout. What is published meanwhile
// comes back.
func (p *AMQP) dial(ctx context.Context) (o opened, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.dialTimeout())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		o, err = hedge.First(ctx, hedge.Every, p.open, opened.discard)
	}()
	p.attend(ctx, nil, done)
	<-done
	if err != nil {
		return opened{}, p.hinted(err)
	}
	return o, nil
}

// open makes one attempt at a connection. It ends with ctx.
func (p *AMQP) open(ctx context.Context) (opened, error) {
	c := newClock()
	d := &dialer{writeTimeout: p.cfg.SendTimeout, clock: c}
	stop := context.AfterFunc(ctx, d.close) // ends the handshake
	connection, err := amqp.DialConfig(p.cfg.URL, p.clientConfig(ctx, d))
	if !stop() && err == nil {
		err = context.Cause(ctx)
		_ = connection.Close()
	}
	if err == nil {
		err = d.established(2 * connection.Config.Heartbeat)
	}
	if err != nil {
		d.close()
		return opened{}, err
	}
	return opened{connection, d.socket, c}, nil
}

// hinted adds what may be behind an error that does not say it itself: with TLS 1.3 a broker
// that misses the client's certificate says so, or just hangs up, after the handshake.
func (p *AMQP) hinted(err error) error {
	var alert tls.AlertError
	var exception *amqp.Error // 501 of this side is what reading from the network said
	hungUp := errors.As(err, &alert) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, amqp.ErrClosed) ||
		errors.As(err, &exception) && exception.Code == amqp.FrameError && !exception.Server
	if certified := p.uri.CertFile != "" || p.cfg.TLS != nil; p.uri.Scheme == "amqps" && !certified && hungUp {
		return fmt.Errorf("%w; where the broker asks for a certificate: --amqp-cert-file FILE --amqp-key-file FILE", err)
	}
	return err
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
