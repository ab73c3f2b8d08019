package services

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// RabbitMQ is one running broker.
type RabbitMQ struct {
	server
	manage management // zero if the broker has no management API
	tools  tools
}

func rabbitAddress(host string, port int) *url.URL {
	return &url.URL{
		Scheme: "amqp",
		User:   url.UserPassword("guest", "guest"),
		Host:   net.JoinHostPort(host, strconv.Itoa(port)),
		Path:   "/",
	}
}

// URL returns the address of a virtual host; "" means the one that exists from the start.
func (r *RabbitMQ) URL(vhost string) string {
	address := *r.address
	if vhost != "" {
		address.Path, address.RawPath = "/"+vhost, "/"+url.PathEscape(vhost)
	}
	return address.String()
}

// ManagementURL returns the address of the HTTP API with user and password, or "" if it is unknown.
func (r *RabbitMQ) ManagementURL() string { return r.manage.URL }

// Ctl runs rabbitmqctl against this broker and returns its output. It takes a second or two.
func (r *RabbitMQ) Ctl(ctx context.Context, args ...string) (string, error) {
	return r.tools.run(ctx, append([]string{"rabbitmqctl"}, args...)...)
}

// EnablePlugin enables a plugin that RabbitMQ comes with. It takes a second or two.
func (r *RabbitMQ) EnablePlugin(ctx context.Context, name string) error {
	_, err := r.tools.run(ctx, "rabbitmq-plugins", "enable", name)
	return err
}

// CanCtl reports whether Ctl works. It does not for a broker known only by its address.
func (r *RabbitMQ) CanCtl() bool { return r.tools.Container != "" || r.tools.Scripts != "" }

// Stop asks the broker to stop and waits until it has ended.
func (r *RabbitMQ) Stop(ctx context.Context) error { return r.end(ctx, syscall.SIGTERM) }

// Start starts a stopped broker with its old port and data, and waits until it accepts connections.
func (r *RabbitMQ) Start(ctx context.Context) error { return r.startReady(ctx, r.connect) }

// Close ends the broker and removes its data. It does nothing to a broker given by the environment.
func (r *RabbitMQ) Close(ctx context.Context) error { return r.close(ctx) }

// connect tests whether the broker is ready: a complete AMQP handshake, and the management API if there is one. It also
// reads the version.
func (r *RabbitMQ) connect(ctx context.Context) error {
	conn, err := amqp.DialConfig(r.URL(""), amqp.Config{Dial: amqp.DefaultDial(5 * time.Second)})
	if err != nil {
		return err
	}
	if version, ok := conn.Properties["version"].(string); ok {
		r.Version = version
	}
	if err := conn.Close(); err != nil {
		return err
	}
	if r.manage.URL == "" {
		return nil
	}
	_, err = r.manage.call(ctx, http.MethodGet, nil, "vhosts")
	return err
}
