package amqp

import (
	"errors"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// opener is a call that opens a lane.
type opener struct {
	exchange string
	most     int
	asks     bool // it asks first whether permissions can be checked
	looksUp  bool // it looks up the exchange, so that a missing one harms no message in flight
	// One of these is the answer.
	lane    *lane
	missing verdict
}

// call opens the lane. An error ends the session.
func (s *session) call(o *opener) error {
	// returnSlack is room for returns beyond the messages in flight.
	const returnSlack = 16
	if o.asks {
		if err := s.publishNothing(); err != nil {
			return err
		}
	}
	channel, err := s.connection.Channel()
	if err == nil && o.looksUp {
		channel, o.missing, err = s.lookUp(channel, o.exchange)
	}
	if err != nil || o.missing.outcome != 0 {
		return err
	}
	if err := channel.Confirm(false); err != nil {
		return fmt.Errorf("select confirm mode: %w", err)
	}
	o.lane = &lane{
		channel: channel, most: o.most, returns: channel.NotifyReturn(make(chan amqp091.Return, o.most+returnSlack)),
		closed: channel.NotifyClose(make(chan *amqp091.Error, 1)),
	}
	return nil
}

// lookUp declares the exchange passively. If it is not missing, it returns a channel that is open.
func (s *session) lookUp(channel *amqp091.Channel, exchange string) (_ *amqp091.Channel, missing verdict, err error) {
	err = channel.ExchangeDeclarePassive(exchange, amqp091.ExchangeDirect, true, false, false, false, nil)
	switch missing, lost := lookedUp(err, s.connection.IsClosed()); {
	case err == nil:
		return channel, verdict{}, nil
	case lost:
		return nil, verdict{}, fmt.Errorf("look up exchange: %w", err)
	case missing.outcome != 0:
		return nil, missing, nil
	}
	channel, err = s.connection.Channel() // the exception has closed the other
	return channel, verdict{}, err
}

// lookedUp says what the answer to a look-up means. Only 404 is a verdict on messages. Other exceptions of the channel
// are about the look-up, which may need more permissions than a message (RabbitMQ 4.2.6 and 4.3.0 ask for configure):
// then the messages are sent, and their own answers count. An exception of the connection (501 to 506, 530, 540, 541),
// a connection that ended, and no answer in time are outages.
func lookedUp(err error, connectionClosed bool) (missing verdict, lost bool) {
	var exception *amqp091.Error
	switch {
	case err == nil:
		return verdict{}, false
	case connectionClosed, !errors.As(err, &exception), !exception.Server:
		return verdict{}, true
	case exception.Code == amqp091.NotFound:
		return exceptionVerdict(exception), false
	}
	return verdict{}, false
}

// longestProof bounds the time that a connection must survive before a message that may have ended others.
const longestProof = 500 * time.Millisecond

// prove reports whether the first message of a route may be sent, or makes the broker show that it works. It must,
// if connections have ended at the message alone, or if it has answered nothing yet. The connection must survive
// twice the time that the message left the last one, and the broker must then answer a message that no queue receives.
// So neither an outage nor a proxy that ends each connection is taken for a fault of the message, and a system without
// other messages finds it, too.
func (s *session) prove(r *route) bool {
	known := s.suspects.Of(r.waiting[0].message)
	if r.proved || known.Alone == 0 && (s.heard || !known.MustBeAlone()) {
		r.proved = false
		return true
	}
	if r.proving {
		return false
	}
	r.proving = true
	s.do("publish a probe", func() error {
		if known.Alone > 0 {
			timer := time.NewTimer(min(2*known.Lasted, longestProof))
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-s.ended:
				return errUnproved
			}
		}
		return s.publishNothing()
	}, func(err error) {
		if r.proving = false; err != nil {
			s.lose(err)
			return
		}
		s.hear()
		r.proved = len(r.waiting) > 0
		s.advance(r)
	})
	return false
}

// reservedName is a routing key that reaches no queue: RabbitMQ lets nobody choose a queue name with this prefix.
const reservedName = "amq.cdc-relay.probe"

var errUnproved = errors.New("the connection was lost before the answer to a probe")

// publishNothing publishes a message that no queue receives, and waits for the answer. A missing permission is an
// answer, too; an authorization service that is down is none. It uses its own channel, which the broker may close.
func (s *session) publishNothing() error {
	channel, err := s.connection.Channel()
	if err != nil {
		return fmt.Errorf("open channel: %w", err)
	}
	closed := channel.NotifyClose(make(chan *amqp091.Error, 1))
	if err := channel.Confirm(false); err != nil {
		return fmt.Errorf("select confirm mode: %w", err)
	}
	confirm, err := channel.PublishWithDeferredConfirm("", reservedName, false, false, amqp091.Publishing{})
	if err != nil {
		return fmt.Errorf("publish a probe: %w", err)
	}
	select {
	case <-confirm.Done():
	case <-s.ended:
	}
	if s.over() || s.connection.IsClosed() {
		return errUnproved
	}
	if !channel.IsClosed() {
		return channel.Close()
	}
	if reason := <-closed; couldNotAsk(reason) {
		return fmt.Errorf("RabbitMQ cannot check permissions%s", because(reason))
	}
	return nil // 403: the user may not publish to the default exchange
}
