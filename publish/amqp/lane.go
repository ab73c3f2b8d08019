package amqp

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish/wire"
)

// lane is one channel in confirm mode. A shared lane carries the messages of one exchange, so that a channel exception
// affects no other exchange. Others carry flights.
type lane struct {
	exchange string
	channel  *amqp091.Channel
	shared   bool
	// returns has room for most messages, and no more may be unanswered: the library drops a return that it cannot
	// deliver, and the message would look confirmed.
	returns chan amqp091.Return
	most    int
	// closed receives at most one reason, and is then closed.
	closed chan *amqp091.Error
	// holds: the exchange waits until each message has its answer. Only the sender uses it.
	holds bool
	// unanswered counts the messages of a shared lane.
	unanswered atomic.Int64

	// Only the reaper uses the fields below, until it reports the end of the lane.
	exception *amqp091.Error // received from closed
	waiting   int            // unanswered entries
	crowded   bool           // it died with several unanswered entries, or one timed out: the cause is unknown
	sealed    bool           // the sender sends nothing more on it
	replaced  bool           // the sender knows that it must use another one
	returned  *returned      // nil until the first return
	resends   []resend       // in the order in which they were sent
}

// resend is a message of a dead lane.
type resend struct {
	message *outbox.Message
	// sent: the broker may have it.
	sent bool
}

// reason returns why the broker closed the channel, or nil if it gave no reason. Only the reaper calls it.
func (l *lane) reason() *amqp091.Error {
	select {
	case e, ok := <-l.closed:
		if ok {
			l.exception = e
		}
	default:
	}
	return l.exception
}

// openLane opens the lane of a job. It blocks until the broker answers. It opens no lane if it looks up the exchange,
// and that is missing. An error ends the session.
func (s *session) openLane(j *job, looksUp bool) (l *lane, missing verdict) {
	// returnSlack is room for returns beyond the messages in flight.
	const returnSlack = 16
	err := s.limited("open channel", func() error {
		channel, err := s.connection.Channel()
		if err == nil && looksUp {
			channel, missing, err = s.lookUp(channel, j.exchange)
		}
		if err != nil || missing.outcome != 0 {
			return err
		}
		if err := channel.Confirm(false); err != nil {
			return fmt.Errorf("select confirm mode: %w", err)
		}
		l = &lane{exchange: j.exchange, channel: channel, shared: len(j.messages) == 0, most: j.most}
		l.returns = channel.NotifyReturn(make(chan amqp091.Return, j.most+returnSlack))
		l.closed = channel.NotifyClose(make(chan *amqp091.Error, 1))
		return nil
	})
	if err != nil {
		s.lose(fmt.Errorf("open channel: %w", err))
		return nil, lostBeforeSent()
	}
	return l, missing
}

// entry is one message passed to the library. The reaper knows it before it is sent, so that the broker's answer finds
// it.
type entry struct {
	message *outbox.Message
	parcel  parcel
	lane    *lane
	flight  *flight // nil on a shared lane
	resent  bool    // it was sent before, on a lane that died
	epoch   int     // of the throttle; only on a shared lane

	// The sending goroutine writes confirm, err, began and wait before it sets published.
	confirm   *amqp091.DeferredConfirmation
	err       error
	began     time.Duration // on the session's clock, before it was sent
	wait      wait          // since the socket had taken the whole message
	published atomic.Bool
	// awaited: a job waits for this answer, and no other flight is under way meanwhile.
	awaited atomic.Bool

	// Only the reaper uses the fields below.
	content  content // only if the lane has had a return
	returned *amqp091.Return
}

// send passes the message to the library, and then sets published for the reaper. It blocks while the socket does not
// take the bytes.
func (e *entry) send(c *clock) error {
	e.message.SentAt = time.Now()
	e.began = c.now()
	p := &e.parcel
	// mandatory: the broker returns an unroutable message instead of dropping it.
	e.confirm, e.err = e.lane.channel.PublishWithDeferredConfirm(p.exchange, p.key, true, false, p.body)
	e.wait.since = c.now()
	err := e.err
	e.published.Store(true)
	return err
}

// resolved reports, without blocking, whether the outcome of the entry is known.
func (e *entry) resolved() bool {
	if !e.published.Load() {
		return false
	}
	if e.err != nil {
		return true
	}
	select {
	case <-e.confirm.Done():
		return true
	default:
		return false
	}
}

const (
	// mostExchanges bounds the number of remembered exchanges.
	mostExchanges = 4096
	// missingFor is how long a verdict on an exchange applies to all of its messages.
	missingFor = time.Second
)

// lookUp is the last look-up of an exchange.
type lookUp struct {
	// found: the exchange existed, or the answer said nothing about it. It is not looked up again until it is missing.
	found bool
	// wide: it once needed a lane with much room.
	wide bool
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

// parcel is a message as the library takes it.
type parcel struct {
	exchange, key string
	body          amqp091.Publishing
	// risky: the broker may close the channel because of this message, although it is well-formed.
	risky bool
}

func (s *session) encode(m *outbox.Message, possibleDuplicate bool) (parcel, error) {
	limits := s.limits
	limits.MostBody = int(s.mostBody.Load())
	p, err := wire.Encode(m, limits, possibleDuplicate)
	if err != nil {
		return parcel{}, err
	}
	body := amqp091.Publishing{
		Headers: table(p.Headers), ContentType: p.ContentType, ContentEncoding: p.ContentEncoding,
		DeliveryMode: p.DeliveryMode, CorrelationId: p.CorrelationID, ReplyTo: p.ReplyTo,
		Expiration: p.Expiration, MessageId: p.MessageID, Timestamp: p.Timestamp, Type: p.Type,
		UserId: p.UserID, AppId: p.AppID, Body: p.Body,
	}
	setPriority(&body, p.Priority)
	risky := s.risky(&p)
	return parcel{exchange: p.Exchange, key: p.Key, risky: risky, body: body}, nil
}

// table gives an object the library's type, and the objects in it.
func table(object map[string]any) amqp091.Table {
	for name, value := range object {
		switch value.(type) {
		case map[string]any, []any:
			object[name] = field(value)
		}
	}
	return object
}

func field(value any) any {
	switch v := value.(type) {
	case map[string]any:
		return table(v)
	case []any:
		for i, element := range v {
			v[i] = field(element)
		}
	}
	return value
}

// risky reports whether the broker may reject the message by its own rules: it limits bodies (max_message_size, 16 MiB
// since RabbitMQ 4.0; above mostBody they are not sent), and compares user_id with the login, unless that has the tag
// impersonator.
func (s *session) risky(p *wire.Parcel) bool {
	const common = 16 << 20
	return s.foreign(p.UserID) && !s.impersonates.Load() || len(p.Body) > common
}

func (s *session) foreign(userID string) bool { return userID != "" && userID != s.node.URI.Username }
