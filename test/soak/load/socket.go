package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// dialTimeout bounds TCP, TLS and the AMQP handshake.
	dialTimeout = 5 * time.Second
	// heartbeat is what the consumers ask the broker for.
	heartbeat = 2 * time.Second
	// silence is how long a broker may say nothing before it counts as gone: a few heartbeats.
	silence = 4 * heartbeat
	// writeTimeout bounds one write.
	writeTimeout = 5 * time.Second
)

// broker is a connection that notices a dead or paused peer. The AMQP library sets no write deadline, and its own read
// deadline depends on a goroutine that a stuck write stops: so the socket sets both, and stays at hand to be closed, the
// only way to end the library's calls for certain.
type broker struct {
	*amqp.Connection
	socket *deadlineConn
}

func dialBroker(ctx context.Context, amqpURL, name string) (*broker, error) {
	b := &broker{}
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName("cdc-relay-soak " + name)
	stop := func() bool { return true }
	defer func() { stop() }()
	var err error
	b.Connection, err = amqp.DialConfig(amqpURL, amqp.Config{
		Heartbeat:  heartbeat,
		Properties: properties,
		Dial: func(network, address string) (net.Conn, error) {
			dialer := net.Dialer{Timeout: dialTimeout}
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			b.socket = &deadlineConn{Conn: conn}
			stop = context.AfterFunc(ctx, b.cut) // for the handshake
			return b.socket, nil
		},
	})
	if err != nil {
		if b.socket != nil {
			b.cut()
		}
		return nil, fmt.Errorf("connect to RabbitMQ at %s: %w", hostOf(amqpURL), err)
	}
	return b, nil
}

// hostOf leaves the password out.
func hostOf(amqpURL string) string {
	u, err := url.Parse(amqpURL)
	if err != nil {
		return "an address that is not a URL"
	}
	return fmt.Sprintf("%s, virtual host %q", u.Host, u.Path)
}

// close ends the connection in an orderly way where the broker answers within a second.
func (b *broker) close() {
	_ = b.CloseDeadline(time.Now().Add(time.Second)) // the cut ends it otherwise
	b.cut()
}

// cut ends the connection at once.
func (b *broker) cut() { _ = b.socket.Close() }

// deadlineConn gives every Read and Write a deadline of its own and ignores those that the library sets.
type deadlineConn struct{ net.Conn }

func (c *deadlineConn) Read(b []byte) (int, error) {
	if err := c.Conn.SetReadDeadline(time.Now().Add(silence)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c *deadlineConn) Write(b []byte) (int, error) {
	if err := c.Conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// SetDeadline leaves the deadlines to Read and Write.
func (c *deadlineConn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline leaves the deadlines to Read and Write.
func (c *deadlineConn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline leaves the deadlines to Read and Write.
func (c *deadlineConn) SetWriteDeadline(time.Time) error { return nil }

// Close may be called several times.
func (c *deadlineConn) Close() error {
	if err := c.Conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
