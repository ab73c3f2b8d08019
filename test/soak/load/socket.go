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
	// dialTimeout limits TCP, TLS and the AMQP handshake together.
	dialTimeout = 5 * time.Second
	// heartbeat is the interval that the consumers request from the broker.
	heartbeat = 2 * time.Second
	// silence is how long a broker may send nothing before it counts as dead: a few heartbeats.
	silence = 4 * heartbeat
	// writeTimeout limits one write.
	writeTimeout = 5 * time.Second
)

// broker is a connection that notices a dead or paused peer. The AMQP library sets no write deadline, and its read
// deadline depends on a goroutine that a stuck write blocks. So the socket sets both. Closing it is the only sure way
// to end the library's calls.
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
			stop = context.AfterFunc(ctx, b.cut) // during the handshake
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

// hostOf omits the password.
func hostOf(amqpURL string) string {
	u, err := url.Parse(amqpURL)
	if err != nil {
		return "an address that is not a URL"
	}
	return fmt.Sprintf("%s, virtual host %q", u.Host, u.Path)
}

// close closes the connection in order if the broker answers within a second.
func (b *broker) close() {
	_ = b.CloseDeadline(time.Now().Add(time.Second)) // otherwise cut ends it
	b.cut()
}

// cut ends the connection at once.
func (b *broker) cut() { _ = b.socket.Close() }

// deadlineConn sets its own deadline for every Read and Write and ignores those of the library.
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

// SetDeadline does nothing: Read and Write set the deadlines.
func (c *deadlineConn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline does nothing: Read sets the deadline.
func (c *deadlineConn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing: Write sets the deadline.
func (c *deadlineConn) SetWriteDeadline(time.Time) error { return nil }

// Close can be called several times.
func (c *deadlineConn) Close() error {
	if err := c.Conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
