package publish

import (
	"fmt"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// lane is one channel in confirm mode. A shared lane carries the messages of one
// exchange, so that a channel exception harms no others; an isolation lane carries
// messages that are sent alone.
type lane struct {
	exchange string
	channel  *amqp.Channel
	shared   bool
	// returns has room for every message that can be in flight: a return that the
	// library cannot hand over is dropped, and the message then acked.
	returns chan amqp.Return
	// closed gets the reason at most once and is then closed.
	closed chan *amqp.Error

	// These belong to the reaper.
	exception *amqp.Error // received from closed
	newest    *entry      // sent last
	waiting   int         // entries without an answer
	crowded   bool        // it died with several of them: nobody knows of which
	dying     bool        // the sender was told that the channel is closed
	sealed    bool        // the sender sends no more on it
	evicted   bool        // sealed to make room, not because it died
	timedOut  bool        // an entry did, and the sender was told
	resends   []resend    // in the order in which they were sent
}

// resend is a message of a lane that died.
type resend struct {
	message *outbox.Message
	// sent: the broker may have it.
	sent bool
}

// outcome is the result if the message is not sent again.
func (s resend) outcome() outbox.Outcome {
	if s.sent {
		return outbox.Unknown
	}
	return outbox.NotSent
}

// openLane opens a channel in confirm mode. It blocks until the broker answers.
func openLane(connection *amqp.Connection, exchange string, shared bool, room int) (*lane, error) {
	channel, err := connection.Channel()
	if err != nil {
		return nil, fmt.Errorf("open channel: %w", err)
	}
	if err := channel.Confirm(false); err != nil {
		return nil, fmt.Errorf("select confirm mode: %w", err)
	}
	l := &lane{exchange: exchange, channel: channel, shared: shared}
	l.returns = channel.NotifyReturn(make(chan amqp.Return, room))
	l.closed = channel.NotifyClose(make(chan *amqp.Error, 1))
	return l, nil
}

// entry is one message that was given to the library. It is known to the reaper
// before it is sent: the broker's answer then finds it.
type entry struct {
	message *outbox.Message
	lane    *lane
	resent  bool // was sent before, on a lane that died
	marked  bool // carries x-possible-duplicate
	epoch   int  // of the throttle; only on a shared lane

	// confirm, err and sentAt are written by who sends, before published is set.
	confirm   *amqp.DeferredConfirmation
	err       error
	sentAt    time.Duration // on the session's clock, when the socket had taken all of it
	published atomic.Bool
	// awaited: the isolator waits for the answer before it sends another message alone.
	awaited atomic.Bool

	// These belong to the reaper.
	returned *amqp.Return
	verdict  verdict
	// settled is closed after verdict was set; nil where nobody waits for it.
	settled chan struct{}
}

// send gives the message to the library and tells the outcome of that to the
// reaper. It blocks while the socket does not take the bytes.
func (e *entry) send(p parcel, c *clock) error {
	e.message.SentAt = time.Now()
	// mandatory: a message that no queue takes comes back instead of being dropped.
	e.confirm, e.err = e.lane.channel.PublishWithDeferredConfirm(p.exchange, p.key, true, false, p.body)
	e.sentAt = c.now()
	err := e.err
	e.published.Store(true)
	return err
}

// resolved tells without waiting whether the fate of the entry is known.
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
