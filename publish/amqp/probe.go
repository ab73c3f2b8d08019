package amqp

import (
	"errors"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/publish"
)

// reservedName is a routing key that reaches no queue: RabbitMQ lets nobody choose a queue name with this prefix.
const reservedName = "amq.cdc-relay.probe"

var errUnproved = errors.New("the connection was lost before the answer to a probe")

// prove checks that the broker works before a message is sent alone, if connections may end at it, or nothing was
// answered since the last one was lost. The connection must survive twice the time that the message left the last one,
// and the broker must then answer a message that no queue receives. So neither an outage nor a proxy that ends each
// connection is taken for a fault of the message, and a system without other messages finds it, too.
func (s *session) prove(known publish.Suspect) error {
	if known.Alone == 0 && (s.heard.Load() || !known.MustBeAlone() && !s.again) {
		return nil
	}
	if known.Alone > 0 {
		timer := time.NewTimer(min(2*known.Lasted, longestWait))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.ended:
			return errUnproved
		}
	}
	err := s.limited("publish a probe", s.probe)
	if err == nil {
		s.tellFirstAnswer()
	}
	return err
}

// probe publishes a message that no queue receives, and waits for the answer. A missing permission is an answer, too.
// It uses its own channel, which the broker may close.
func (c *link) probe() error {
	channel, err := c.connection.Channel()
	if err != nil {
		return fmt.Errorf("open channel: %w", err)
	}
	if err := channel.Confirm(false); err != nil {
		return fmt.Errorf("select confirm mode: %w", err)
	}
	confirm, err := channel.PublishWithDeferredConfirm("", reservedName, false, false, amqp091.Publishing{})
	if err != nil {
		return fmt.Errorf("publish a probe: %w", err)
	}
	select {
	case <-confirm.Done():
	case <-c.ended:
	}
	if c.over() || c.connection.IsClosed() {
		return errUnproved
	}
	if channel.IsClosed() { // 403: the user may not publish to the default exchange
		return nil
	}
	return channel.Close()
}
