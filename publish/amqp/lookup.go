package amqp

import (
	"errors"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	// mostMissing bounds the number of remembered look-ups.
	mostMissing = 4096
	// missingFor is how long a verdict on an exchange applies to all of its messages.
	missingFor = time.Second
)

// lookUp is the last look-up of an exchange.
type lookUp struct {
	// found: the exchange existed, or the answer said nothing about it.
	found bool
	// unanswered: the connection ended before the answer, perhaps because of the look-up. The next lane is opened
	// without one; then the answers to the messages count.
	unanswered bool
	// The exchange rejects every message.
	rejectedAt time.Time
	verdict    verdict
}

// lookUp declares the exchange passively before messages are sent to it, so that a missing one harms none in flight. If
// it is not missing, it returns a channel that is open.
func (c *link) lookUp(channel *amqp091.Channel, exchange string) (_ *amqp091.Channel, missing verdict, err error) {
	err = channel.ExchangeDeclarePassive(exchange, amqp091.ExchangeDirect, true, false, false, false, nil)
	switch missing, lost := lookedUp(err, c.connection.IsClosed()); {
	case err == nil:
		return channel, verdict{}, nil
	case lost:
		return nil, verdict{}, fmt.Errorf("look up exchange: %w", err)
	case missing.outcome != 0:
		c.tellFirstAnswer()
		return nil, missing, nil
	}
	channel, err = c.connection.Channel() // the exception has closed the other
	return channel, verdict{}, err
}

// lookedUp says what the answer to a look-up means. Only 404 is a verdict on messages. Other exceptions of the channel
// are about the look-up, which may need more permissions than a message (RabbitMQ 4.2.6 and 4.3.0 ask for configure):
// then the messages are sent, and their own answers count. An exception of the connection (501 to 506, 530, 540, 541),
// a connection that ended, and no answer in time are outages. So is a login that has expired.
func lookedUp(err error, connectionClosed bool) (missing verdict, lost bool) {
	var exception *amqp091.Error
	switch {
	case err == nil:
		return verdict{}, false
	case connectionClosed, !errors.As(err, &exception), !exception.Server, loginExpired(exception):
		return verdict{}, true
	case exception.Code == amqp091.NotFound:
		return exceptionVerdict(exception), false
	}
	return verdict{}, false
}
