package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// amqpProbe asks a broker what it would do, and changes nothing there.
type amqpProbe struct {
	conn    *amqp.Connection
	socket  net.Conn
	channel *amqp.Channel      // nil: there was none yet
	closed  <-chan *amqp.Error // why the channel was closed
	blocked chan amqp.Blocking
}

// use runs one call on a channel; an exception closes that, and the next call gets another.
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
		// An exception came between two calls, and the later one does not say which.
		if reason := <-p.closed; reason != nil {
			return reason
		}
	}
	return err
}

func (p *amqpProbe) exchange(name string) error {
	return p.use(func(c *amqp.Channel) error {
		return c.ExchangeDeclarePassive(name, "direct", false, false, false, false, nil) // passive: the type does not count
	})
}

// queue: one that is locked to another connection exists.
func (p *amqpProbe) queue(name string) error {
	err := p.use(func(c *amqp.Channel) error {
		_, err := c.QueueDeclarePassive(name, false, false, false, false, nil)
		return err
	})
	var exception *amqp.Error
	if errors.As(err, &exception) && exception.Code == amqp.ResourceLocked {
		return nil
	}
	return err
}

// fatal is an error of the connection: none of the following questions can be asked.
func (p *amqpProbe) fatal(err error) error {
	if err != nil && p.conn.IsClosed() {
		return err
	}
	return nil
}

// errBlocked is an alarm of the broker.
var errBlocked = errors.New("the broker takes no messages")

// blockedTimeout is how long an answer may take that comes at once without an alarm.
const blockedTimeout = 3 * time.Second

// take publishes in a transaction that is rolled back. The broker looks at exchange and
// permissions when it gets the message (404, 403), and brings it to the queues only with the
// commit, so nothing is left anywhere. A message that no queue takes comes back with the
// commit only, too, so that cannot be learned in this way: seen with RabbitMQ 3.10.8, and
// rabbit_channel.erl (handle_method of basic.publish) is so in 4, too. A direct reply alone
// goes at once. With an alarm the broker reads nothing more after it, and says
// connection.blocked.
func (p *amqpProbe) take(ctx context.Context, d destination) error {
	ctx, cancel := context.WithTimeout(ctx, blockedTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- p.use(func(c *amqp.Channel) error {
			if err := c.Tx(); err != nil {
				return err
			}
			message := amqp.Publishing{Headers: amqp.Table{"x-recent-history-no-store": true}} // a plugin's exchange that keeps what it gets
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
	case b := <-p.blocked:
		err = fmt.Errorf("%w: %s", errBlocked, b.Reason)
	case <-ctx.Done():
		err = fmt.Errorf("%w: no answer in %s", errBlocked, blockedTimeout)
	}
	_ = p.socket.Close() // a broker that reads nothing hears no goodbye either
	<-done
	return err
}

// close says goodbye, and waits for the answer no longer than a moment.
func (p *amqpProbe) close() {
	goodbye := time.AfterFunc(2*time.Second, func() { _ = p.socket.Close() })
	defer goodbye.Stop()
	_ = p.conn.Close()
}
