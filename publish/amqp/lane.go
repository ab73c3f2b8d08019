package amqp

import (
	"fmt"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// lane is one channel in confirm mode. A shared lane carries the messages of one exchange, so that a channel exception
// affects no other exchange. An isolation lane carries messages that are sent alone.
type lane struct {
	exchange string
	channel  *amqp091.Channel
	shared   bool
	// returns has room for every message in flight: the library drops a return that it cannot deliver, and the message
	// would look confirmed.
	returns chan amqp091.Return
	// closed receives at most one reason, and is then closed.
	closed chan *amqp091.Error

	// Only the reaper uses the fields below.
	exception *amqp091.Error // received from closed
	newest    *entry         // the last message sent
	waiting   int            // unanswered entries
	crowded   bool           // it died with several unanswered entries: the cause is unknown
	sealed    bool           // the sender sends nothing more on it
	evicted   bool           // sealed to make room; it has not died
	replaced  bool           // the sender knows that it must use another one
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

// openLane opens a channel in confirm mode. It blocks until the broker answers. It opens no lane if it looks up the
// exchange, and that is missing. An error ends the session.
func (s *session) openLane(exchange string, shared, looksUp bool) (l *lane, missing verdict) {
	// returnSlack is room for returns beyond the messages in flight.
	const returnSlack = 16
	err := s.limited("open channel", func() error {
		channel, err := s.connection.Channel()
		if err == nil && looksUp {
			channel, missing, err = s.lookUp(channel, exchange)
		}
		if err != nil || missing.outcome != 0 {
			return err
		}
		if err := channel.Confirm(false); err != nil {
			return fmt.Errorf("select confirm mode: %w", err)
		}
		l = &lane{exchange: exchange, channel: channel, shared: shared}
		l.returns = channel.NotifyReturn(make(chan amqp091.Return, s.maxInFlight+returnSlack))
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
	lane    *lane
	resent  bool // it was sent before, on a lane that died
	marked  bool // it has x-possible-duplicate
	epoch   int  // of the throttle; only on a shared lane

	// The sending goroutine writes confirm, err and sentAt before it sets published.
	confirm   *amqp091.DeferredConfirmation
	err       error
	sentAt    time.Duration // on the session's clock, when the socket had taken the whole message
	published atomic.Bool
	// awaited: a job waits for this answer, and no other job sends meanwhile.
	awaited atomic.Bool

	// Only the reaper uses the fields below.
	returned *amqp091.Return
	verdict  verdict
	// settled is closed after verdict was set; nil: nobody waits for it.
	settled chan struct{}
}

// send passes the message to the library, and then sets published for the reaper. It blocks while the socket does not
// take the bytes.
func (e *entry) send(p parcel, c *clock) error {
	e.message.SentAt = time.Now()
	// mandatory: the broker returns an unroutable message instead of dropping it.
	e.confirm, e.err = e.lane.channel.PublishWithDeferredConfirm(p.exchange, p.key, true, false, p.body)
	e.sentAt = c.now()
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
