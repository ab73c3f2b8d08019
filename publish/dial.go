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
	"syscall"
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

// opened is a connection that was just opened.
type opened struct {
	connection *amqp.Connection
	socket     *socket
	clock      *clock
}

// dial opens a connection, at the latest within the send timeout. What is published meanwhile
// comes back.
func (p *AMQP) dial(ctx context.Context) (o opened, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.dialTimeout())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		o, err = p.open(ctx)
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
	o := opened{clock: newClock()}
	stop := func() bool { return true }
	config := p.clientConfig()
	config.Dial = func(network, addr string) (net.Conn, error) {
		s, err := dialSocket(ctx, network, addr, p.acceptTimeout(), p.cfg.SendTimeout, o.clock)
		if err != nil {
			return nil, err
		}
		o.socket = s
		stop = context.AfterFunc(ctx, func() { _ = s.Close() }) // ends the handshake
		return s, nil
	}
	var err error
	o.connection, err = amqp.DialConfig(p.cfg.URL, config)
	if !stop() && err == nil {
		err = context.Cause(ctx)
		_ = o.connection.Close()
	}
	if err == nil {
		err = o.socket.established(2 * o.connection.Config.Heartbeat)
	}
	if err != nil && o.socket != nil {
		_ = o.socket.Close()
	}
	return o, err
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

// dialTimeout is for one connection with its handshake.
func (p *AMQP) dialTimeout() time.Duration {
	if ms := p.uri.ConnectionTimeout; ms > 0 {
		return time.Duration(ms) * time.Millisecond
	}
	return p.cfg.SendTimeout
}

// acceptTimeout is how long the host may take to accept the connection. The kernel sends its second
// SYN after one second and the next ones ever later, so a new attempt notices sooner that a host is back.
func (p *AMQP) acceptTimeout() time.Duration {
	const usual = 2 * time.Second
	if p.uri.ConnectionTimeout > 0 {
		return p.dialTimeout()
	}
	return usual
}

func (p *AMQP) clientConfig() amqp.Config {
	properties := amqp.NewConnectionProperties()
	properties["product"] = "cdc-relay"
	name := "cdc-relay"
	if host, err := os.Hostname(); err == nil {
		name = fmt.Sprintf("cdc-relay %s/%d", host, os.Getpid())
	}
	properties.SetClientConnectionName(name)
	cfg := amqp.Config{Heartbeat: p.cfg.Heartbeat, Properties: properties}
	if p.cfg.TLS != nil {
		cfg.TLSClientConfig = p.cfg.TLS.Clone()
	}
	return cfg
}
