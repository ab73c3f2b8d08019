package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// amqpProbe asks a broker how it would treat messages. It changes nothing there.
type amqpProbe struct {
	conn    *amqp.Connection
	socket  net.Conn
	channel *amqp.Channel      // nil: none was opened yet
	closed  <-chan *amqp.Error // receives why the channel was closed
	blocked chan amqp.Blocking
}

// use runs one call on a channel. An exception closes the channel; the next call opens another.
func (p *amqpProbe) use(call func(*amqp.Channel) error) error {
	if p.channel == nil || p.channel.IsClosed() {
		channel, err := p.conn.Channel()
		if err != nil {
			return err
		}
		p.channel, p.closed = channel, channel.NotifyClose(make(chan *amqp.Error, 1))
	}
	err := call(p.channel)
	if errors.Is(err, amqp.ErrClosed) {
		// An exception came between two calls; the later call does not return it.
		if reason := <-p.closed; reason != nil {
			return reason
		}
	}
	return err
}

func (p *amqpProbe) exchange(name string) error {
	return p.use(func(c *amqp.Channel) error {
		// Passive: the broker ignores the type.
		return c.ExchangeDeclarePassive(name, "direct", false, false, false, false, nil)
	})
}

// queue also returns nil if the queue is locked by another connection: it exists.
func (p *amqpProbe) queue(name string) error {
	_, err := p.ready(name)
	if codeOf(err) == amqp.ResourceLocked {
		return nil
	}
	return err
}

// ready counts the messages of a queue that wait for consumers. The HTTP API knows that a few seconds later, or never.
func (p *amqpProbe) ready(name string) (n int, err error) {
	err = p.use(func(c *amqp.Channel) error {
		q, err := c.QueueDeclarePassive(name, false, false, false, false, nil)
		n = q.Messages
		return err
	})
	return n, err
}

// fatal returns an error of the connection, after which no more questions are possible.
func (p *amqpProbe) fatal(err error) error {
	if err != nil && p.conn.IsClosed() {
		return err
	}
	return nil
}

// errBlocked: the broker has an alarm.
var errBlocked = errors.New("RabbitMQ accepts no messages")

// blockedTimeout is the limit for an answer that comes at once if there is no alarm.
const blockedTimeout = 3 * time.Second

// take publishes in a transaction that is rolled back. The broker checks exchange and permissions when it receives the
// message (404, 403), and routes it to queues only at the commit, so nothing stays anywhere. An unroutable message is
// also returned only at the commit, so this cannot find one: seen with RabbitMQ 3.10.8, and the same in
// rabbit_channel.erl of 4 (handle_method of basic.publish). Only a direct reply is delivered at once. During an alarm
// the broker stops reading after the message, and sends connection.blocked.
func (p *amqpProbe) take(ctx context.Context, d destination) error {
	ctx, cancel := context.WithTimeout(ctx, blockedTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- p.use(func(c *amqp.Channel) error {
			if err := c.Tx(); err != nil {
				return err
			}
			// An x-recent-history exchange, of a plugin, would store it.
			message := amqp.Publishing{Headers: amqp.Table{"x-recent-history-no-store": true}}
			if err := c.PublishWithContext(ctx, d.exchange, d.routingKey, false, false, message); err != nil {
				return err
			}
			return c.TxRollback()
		})
	}()
	var err error
	select {
	case err = <-done:
		return err
	case b, open := <-p.blocked:
		if !open { // the connection has ended, and this call as well
			return <-done
		}
		err = fmt.Errorf("%w: %s", errBlocked, b.Reason)
	case <-ctx.Done():
		err = fmt.Errorf("%w: no answer in %s", errBlocked, blockedTimeout)
	}
	_ = p.socket.Close() // a blocked broker would not read a connection.close
	<-done
	return err
}

// close closes the connection, and waits only briefly for the broker's answer.
func (p *amqpProbe) close() {
	goodbye := time.AfterFunc(2*time.Second, func() { _ = p.socket.Close() })
	defer goodbye.Stop()
	_ = p.conn.Close()
}
