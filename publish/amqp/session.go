package amqp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/publish/wire"
)

// session is one connection. Three goroutines work in it:
//
//	sender    takes messages, encodes them and sends them on the lane of their exchange
//	isolator  opens the lanes, and sends alone messages that might close a channel
//	reaper    waits for the confirms, and delivers the results of all sent messages
//
// The goroutine of run watches the connection and ends it.
type session struct {
	owner      *Publisher // only run calls its methods
	cfg        *Config
	limits     wire.Limits
	connection *amqp091.Connection
	socket     *socket
	clock      *clock
	sink       publish.Sink

	// in has the messages of the relay; the sender takes them while the session lives.
	in *publish.Mailbox[*outbox.Message]
	// control has events about lanes for the sender; from isolator, reaper and run.
	control *publish.Mailbox[laneNews]
	// sent has the sent messages for the reaper; from sender and isolator.
	sent *publish.Mailbox[reaperNews]
	// jobs are for the isolator; from sender and reaper.
	jobs *publish.Mailbox[job]
	// throttle bounds the unconfirmed messages of the sender; the reaper reports answers to it.
	throttle *throttle
	// alone belongs to the publisher and outlives the session.
	alone *publish.Suspects

	// ended is closed once by end: sender and isolator stop.
	ended   chan struct{}
	endOnce sync.Once
	// lost receives the reason why the session gives up the connection.
	lost chan error
	// answered receives one value at the broker's first answer to a message; heard is then true.
	answered chan struct{}
	heard    atomic.Bool

	// closing counts the channels that are being closed.
	closing sync.WaitGroup
	// inFlight counts the messages that the library has and that have no result.
	inFlight atomic.Int64
	// left counts the isolation lanes left open for an unanswered message.
	left atomic.Int64
	// blocked is true from connection.blocked to connection.unblocked; only run sets it.
	blocked atomic.Bool
	// tooLarge is the smallest body, in bytes, that the broker rejected on this connection; 0: none. Only the reaper
	// sets it.
	tooLarge atomic.Int64
}

// newSession takes over a new connection.
func newSession(p *Publisher, o opened) *session {
	lim := p.limits
	lim.FrameMax = o.connection.Config.FrameSize
	return &session{
		owner: p, cfg: &p.cfg, limits: lim,
		connection: o.connection, socket: o.socket, clock: o.clock, sink: p.inbox.Sink,
		in:      p.inbox.Messages,
		control: publish.NewMailbox[laneNews](), sent: publish.NewMailbox[reaperNews](),
		jobs:     publish.NewMailbox[job](),
		throttle: newThrottle(), alone: p.alone,
		ended: make(chan struct{}), lost: make(chan error, 1), answered: make(chan struct{}, 1),
	}
}

// run works until ctx is done or the connection is lost. When it returns, every sent message has its result. HalfOpen:
// one message is sent at a time until the broker answers one.
func (s *session) run(ctx context.Context, halfOpen bool) {
	closed := s.connection.NotifyClose(make(chan *amqp091.Error, 1))
	blocked := s.connection.NotifyBlocked(make(chan amqp091.Blocking, 16))

	var working, reaping sync.WaitGroup
	snd, iso, reap := newSender(s, halfOpen), newIsolator(s), newReaper(s)
	stopReaper := make(chan struct{})
	working.Go(snd.run)
	working.Go(iso.run)
	reaping.Go(func() { reap.run(stopReaper) })

	err := s.watch(ctx, closed, blocked)
	if err != nil {
		s.owner.connectionLost(s, err)
	}
	s.end()
	s.disconnect(err == nil)
	working.Wait()
	for range closed { // it is closed last, when every confirm is resolved
	}
	close(stopReaper)
	reaping.Wait()
	s.closing.Wait()
}

// watch returns when the session is over, with nil if ctx is done.
func (s *session) watch(ctx context.Context, closed <-chan *amqp091.Error, blocked <-chan amqp091.Blocking) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.lost:
			return err
		case reason, ok := <-closed:
			if !ok || reason == nil {
				return errors.New("the connection was closed")
			}
			return fmt.Errorf("the connection was closed: %s", exceptionText(reason))
		case b, ok := <-blocked:
			switch {
			case !ok:
				blocked = nil // closed follows
			case b.Active:
				s.clock.stop()
				s.blocked.Store(true)
				s.owner.brokerBlocked(b.Reason)
			default:
				s.blocked.Store(false)
				s.clock.resume()
				s.owner.brokerUnblocked()
			}
			s.control.Put(laneNews{})
		case <-s.answered:
			s.owner.brokerAnswered()
			s.control.Put(laneNews{answered: true})
		}
	}
}

// end stops sender and isolator.
func (s *session) end() { s.endOnce.Do(func() { close(s.ended) }) }

func (s *session) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// noAnswer is why a session gives up a connection that is still open.
type noAnswer struct{ cause error }

func (e *noAnswer) Error() string { return e.cause.Error() }
func (e *noAnswer) Unwrap() error { return e.cause }

// lose gives up the connection. Only the first reason counts.
func (s *session) lose(err error) {
	select {
	case s.lost <- &noAnswer{err}:
	default:
	}
}

// disconnect closes the connection, politely if asked, within a moment. Closing the socket ends calls that hang in the
// library.
func (s *session) disconnect(politely bool) {
	const timeout = 200 * time.Millisecond
	done := make(chan struct{})
	if !politely {
		_ = s.socket.Close()
	}
	go func() {
		defer close(done)
		_ = s.connection.Close()
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
	_ = s.socket.Close()
	<-done
}

// closeLane closes an unused channel in the background.
func (s *session) closeLane(l *lane) {
	s.closing.Go(func() { _ = l.channel.Close() })
}

// tellFirstAnswer reports the broker's first answer to a message.
func (s *session) tellFirstAnswer() {
	if s.heard.CompareAndSwap(false, true) {
		s.answered <- struct{}{}
	}
}

// limited bounds a call to the broker for which the library would wait without limit.
func (s *session) limited(what string, call func() error) error {
	done := make(chan struct{})
	defer close(done)
	go s.loseAfterTimeout(what, done)
	return call()
}

// loseAfterTimeout gives up the connection if done is not closed within SendTimeout on the session's clock.
func (s *session) loseAfterTimeout(what string, done <-chan struct{}) {
	end := s.clock.now() + s.cfg.SendTimeout
	for left := s.cfg.SendTimeout; left > 0; left = end - s.clock.now() {
		timer := time.NewTimer(max(left, scanEvery)) // the clock may stop shortly before the end
		select {
		case <-done:
			timer.Stop()
			return
		case <-timer.C:
		}
	}
	s.lose(fmt.Errorf("%s: no answer within %v", what, s.cfg.SendTimeout))
}

// deliver reports a result without the broker.
func (s *session) deliver(m *outbox.Message, o outbox.Outcome, r outbox.Reason, detail string) {
	s.sink.Deliver(outbox.Result{Message: m, Outcome: o, Reason: r, Detail: detail})
}

func (s *session) encode(m *outbox.Message, possibleDuplicate bool) (wire.Parcel, error) {
	p, err := wire.Encode(m, s.limits, possibleDuplicate)
	if err == nil && s.mayBeTooLarge(len(p.Body.Body)) {
		p.Risky = true
	}
	return p, err
}

// mayBeTooLarge reports bodies for which common brokers close the channel (max_message_size, 16 MiB since RabbitMQ
// 4.0).
func (s *session) mayBeTooLarge(size int) bool {
	const common = 16 << 20
	rejected := s.tooLarge.Load()
	return size > common || (rejected > 0 && int64(size) >= rejected)
}
