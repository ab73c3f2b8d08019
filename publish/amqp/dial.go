package amqp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// parseURL reads an AMQP URI. Errors quote nothing of it: a part that looks like a host or a port may belong to a
// password that was not percent-encoded.
func parseURL(raw string) (amqp091.URI, error) {
	const hint = "reserved characters in the user name or password must be percent-encoded, e.g. %40 for @"
	uri, err := amqp091.ParseURI(raw)
	var parse *url.Error
	switch {
	case errors.As(err, &parse):
		return uri, fmt.Errorf("the AMQP URL is not a valid URL; %s", hint)
	case err != nil:
		return uri, fmt.Errorf("read AMQP URL: %w", err)
	}
	// The library has already parsed it without an error.
	if u, _ := url.Parse(raw); u.User == nil && strings.Contains(u.Path, "@") {
		return uri, fmt.Errorf("the AMQP URL has an @ after the host; %s", hint)
	}
	return uri, nil
}

// opened is a new connection.
type opened struct {
	connection *amqp091.Connection
	socket     *socket
	clock      *clock
}

// dial opens a connection within the dial timeout. Messages published meanwhile are NotSent.
func (p *Publisher) dial(ctx context.Context) (o opened, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.dialTimeout())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		o, err = p.open(ctx)
	}()
	p.rejectUntil(ctx, nil, done)
	<-done
	if err != nil {
		return opened{}, Undialled(p.uri, err)
	}
	return o, nil
}

// open makes one attempt to connect, until ctx is done.
func (p *Publisher) open(ctx context.Context) (opened, error) {
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
	if p.uri.Scheme == "amqps" {
		if config.TLSClientConfig, err = TLSConfig(p.cfg.TLS, p.uri); err != nil {
			return o, fmt.Errorf("create TLS config from URI: %w", err)
		}
	}
	o.connection, err = amqp091.DialConfig(p.cfg.URL, config)
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

// dialTimeout bounds connecting, with the handshake.
func (p *Publisher) dialTimeout() time.Duration {
	if ms := p.uri.ConnectionTimeout; ms > 0 {
		return time.Duration(ms) * time.Millisecond
	}
	return p.cfg.SendTimeout
}

// acceptTimeout bounds the TCP connect. The kernel repeats the SYN after one second and then ever later, so a new
// attempt finds a returned host earlier.
func (p *Publisher) acceptTimeout() time.Duration {
	const usual = 2 * time.Second
	if p.uri.ConnectionTimeout > 0 {
		return p.dialTimeout()
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

// TLSConfig returns a copy of the given configuration, or if that is nil, one with the certificates that the parameters
// of the URI name (https://www.rabbitmq.com/docs/uri-query-parameters). Its error is that of a file that cannot be
// read.
func TLSConfig(given *tls.Config, uri amqp091.URI) (*tls.Config, error) {
	if given != nil {
		return given.Clone(), nil
	}
	config := &tls.Config{ServerName: uri.ServerName, MinVersion: tls.VersionTLS12}
	if uri.CACertFile != "" {
		text, err := os.ReadFile(uri.CACertFile)
		if err != nil {
			return nil, fmt.Errorf("read CA certificate: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(text)
	}
	if uri.CertFile != "" && uri.KeyFile != "" {
		certificate, err := tls.LoadX509KeyPair(uri.CertFile, uri.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("load client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}
