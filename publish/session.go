package publish

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// session is the life of one connection. Three goroutines work in it:
//
//	sender    takes messages, encodes them and sends them on the lane of their exchange
//	isolator  sends alone what might close a channel, and opens the lanes
//	reaper    waits for the confirms, and delivers the result of all that was sent
//
// The goroutine of run watches the connection and ends it.
type session struct {
	owner      *AMQP // its methods are called by run alone
	cfg        *AMQPConfig
	limits     limits
	connection *amqp.Connection
	socket     *socket
	clock      *clock
	sink       Sink

	// in is what the relay publishes; the sender takes it while the session lives.
	in *mailbox[*outbox.Message]
	// control tells the sender of its lanes; from isolator, reaper and run.
	control *mailbox[laneNews]
	// sent tells the reaper what was sent; from sender and isolator.
	sent *mailbox[reaperNews]
	// jobs are for the isolator; from sender and reaper.
	jobs *mailbox[job]
	// throttle bounds what the sender sends without confirms; the reaper tells it of the answers.
	throttle *throttle
	// alone is the publisher's: it outlives the session.
	alone *aloneList

	// ended is closed by end, once: sender and isolator stop.
	ended   chan struct{}
	endOnce sync.Once
	// lost gets the reason for which the session gives the connection up.
	lost chan error
	// answered gets one value with the first answer of the broker to a message;
	// heard then holds.
	answered chan struct{}
	heard    atomic.Bool

	// closing counts the channels being closed.
	closing sync.WaitGroup
	// inFlight counts the messages given to the library and without a result.
	inFlight atomic.Int64
	// left counts the isolation lanes that the isolator left because they owe an answer.
	left atomic.Int64
	// blocked holds from connection.blocked to connection.unblocked; set by run.
	blocked atomic.Bool
	// tooLarge is the smallest body, in bytes, that the broker rejected on this
	// connection; 0 for none. Set by the reaper.
	tooLarge atomic.Int64
}

// newSession takes over a connection that was just opened.
func newSession(p *AMQP, o opened) *session {
	lim := p.limits
	lim.frameMax = o.connection.Config.FrameSize
	return &session{
		owner: p, cfg: &p.cfg, limits: lim, connection: o.connection, socket: o.socket, clock: o.clock, sink: p.sink,
		in:      p.in,
		control: newMailbox[laneNews](), sent: newMailbox[reaperNews](), jobs: newMailbox[job](),
		throttle: newThrottle(), alone: p.alone,
		ended: make(chan struct{}), lost: make(chan error, 1), answered: make(chan struct{}, 1),
	}
}

// run works until ctx is done or the connection is lost. All that was sent has its
// result when it returns. With a half-open breaker one message leaves at a time until the
// broker answers to one.
func (s *session) run(ctx context.Context, halfOpen bool) {
	closed := s.connection.NotifyClose(make(chan *amqp.Error, 1))
	blocked := s.connection.NotifyBlocked(make(chan amqp.Blocking, 16))

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
	for range closed { // closed last, when every confirm is resolved
	}
	close(stopReaper)
	reaping.Wait()
	s.closing.Wait()
}

// watch returns when the session is over, nil if ctx is done.
func (s *session) watch(ctx context.Context, closed <-chan *amqp.Error, blocked <-chan amqp.Blocking) error {
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
			s.control.put(laneNews{})
		case <-s.answered:
			s.owner.brokerAnswered()
			s.control.put(laneNews{answered: true})
		}
	}
}

// end makes sender and isolator stop.
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

// lose gives the connection up; the first reason counts.
func (s *session) lose(err error) {
	select {
	case s.lost <- &noAnswer{err}:
	default:
	}
}

// disconnect closes the connection, politely if asked and if that takes no longer
// than a moment. Closing the socket ends calls that still hang in the library.
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

// closeLane closes a channel nobody uses any more; the caller does not wait for it.
func (s *session) closeLane(l *lane) {
	s.closing.Go(func() { _ = l.channel.Close() })
}

// tellFirstAnswer tells that the broker answered for a message.
func (s *session) tellFirstAnswer() {
	if s.heard.CompareAndSwap(false, true) {
		s.answered <- struct{}{}
	}
}

// limited runs a call to the broker that the library would wait for without end.
func (s *session) limited(what string, call func() error) error {
	done := make(chan struct{})
	defer close(done)
	go s.loseAfterTimeout(what, done)
	return call()
}

// loseAfterTimeout gives the connection up when SendTimeout has passed on the session's clock
// before done is closed.
func (s *session) loseAfterTimeout(what string, done <-chan struct{}) {
	end := s.clock.now() + s.cfg.SendTimeout
	for left := s.cfg.SendTimeout; left > 0; left = end - s.clock.now() {
		timer := time.NewTimer(max(left, scanEvery)) // the clock may stand still shortly before the end
		select {
		case <-done:
			timer.Stop()
			return
		case <-timer.C:
		}
	}
	s.lose(fmt.Errorf("%s: no answer within %v", what, s.cfg.SendTimeout))
}

// deliver reports a result that involved no broker.
func (s *session) deliver(m *outbox.Message, o outbox.Outcome, r outbox.Reason, detail string) {
	s.sink.Deliver(outbox.Result{Message: m, Outcome: o, Reason: r, Detail: detail})
}

func (s *session) encode(m *outbox.Message, possibleDuplicate bool) (parcel, error) {
	p, err := encode(m, s.limits, possibleDuplicate)
	if err == nil && s.mayBeTooLarge(len(p.body.Body)) {
		p.risky = true
	}
	return p, err
}

// mayBeTooLarge holds for bodies that brokers in common use reject by closing the
// channel (max_message_size, 16 MiB since RabbitMQ 4.0).
func (s *session) mayBeTooLarge(size int) bool {
	const common = 16 << 20
	refused := s.tooLarge.Load()
	return size > common || (refused > 0 && int64(size) >= refused)
}
