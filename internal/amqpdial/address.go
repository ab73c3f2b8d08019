// Package amqpdial reads the addresses of RabbitMQ's nodes, and explains why a node takes no connection.
package amqpdial

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/secret"
)

// Address is where RabbitMQ is, and who logs in. Its text is that of Parse. It is read again for each new connection.
type Address struct{ secret.Text }

// Nodes reads the address. There is at least one node without an error. No error quotes the address.
func (a Address) Nodes() ([]Node, error) {
	text, err := a.Read()
	if err != nil {
		return nil, err
	}
	nodes, err := Parse(text)
	if err != nil {
		return nil, a.Wrong(err)
	}
	return nodes, nil
}

// Explain is Undialled, and tells of which file a rejected password is.
func (a Address) Explain(node Node, err error) *DialError {
	failed := Undialled(node.URI, err)
	if origin := a.Origin(); failed.Part == "login" && origin != "" {
		failed.text += "; " + origin
	}
	return failed
}

// Unread explains an error of Nodes.
func (a Address) Unread(err error) *DialError {
	return &DialError{
		Part: "reachable", Err: err,
		text: "the address of RabbitMQ cannot be read: " + err.Error(),
		hint: "# correct --amqp-url (CDC_RELAY_AMQP_URL), or the file in --amqp-url-file",
	}
}

// Node is one node of RabbitMQ.
type Node struct {
	// URL names one host. It contains the password.
	URL string
	URI amqp091.URI
}

// Address returns host:port.
func (n Node) Address() string { return net.JoinHostPort(n.URI.Host, strconv.Itoa(n.URI.Port)) }

// Dial connects.
func (n Node) Dial(config amqp091.Config) (*amqp091.Connection, error) {
	if n.URI.Scheme == "amqps" {
		var err error
		if config.TLSClientConfig, err = n.TLS(nil); err != nil {
			return nil, fmt.Errorf("in the URL: %w", err)
		}
	}
	return amqp091.DialConfig(n.URL, config)
}

// DialWith connects by config.Dial. Given replaces the TLS configuration of the URL; it may be nil. Wrap gets the
// connection that the library would use, above TLS, and returns another one.
func (n Node) DialWith(
	config amqp091.Config, given *tls.Config, wrap func(net.Conn) net.Conn,
) (*amqp091.Connection, error) {
	var secure *tls.Config
	if n.URI.Scheme == "amqps" {
		var err error
		if secure, err = n.TLS(given); err != nil {
			return nil, fmt.Errorf("in the URL: %w", err)
		}
		secure.ServerName = cmp.Or(secure.ServerName, n.URI.Host)
	}
	dial := config.Dial
	config.Dial = func(network, _ string) (net.Conn, error) {
		conn, err := dial(network, n.Address())
		if err != nil {
			return nil, err
		}
		if secure == nil {
			return wrap(conn), nil
		}
		client := tls.Client(conn, secure)
		if err := client.Handshake(); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return wrap(client), nil
	}
	return amqp091.DialConfig("amqp"+strings.TrimPrefix(n.URL, n.URI.Scheme), config) // the library starts no TLS
}

// TLS returns a copy of the given configuration, or if that is nil, one with the certificates that the parameters of
// the URL name (https://www.rabbitmq.com/docs/uri-query-parameters). Its error is that of a file that cannot be used.
func (n Node) TLS(given *tls.Config) (*tls.Config, error) {
	if given != nil {
		return given.Clone(), nil
	}
	config := &tls.Config{ServerName: n.URI.ServerName, MinVersion: tls.VersionTLS12}
	ca, cert, key := n.URI.CACertFile, n.URI.CertFile, n.URI.KeyFile
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("cacertfile: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("cacertfile: %s: contains no certificate in PEM form", ca)
		}
	}
	if (cert == "") != (key == "") {
		return nil, errors.New("certfile and keyfile: want both or none")
	}
	if cert != "" {
		certificate, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("certfile=%s, keyfile=%s: %w", cert, key, err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}
