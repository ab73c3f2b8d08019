package amqp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/publish/wire"
)

const (
	// tickEvery is how often the session looks for what takes too long.
	tickEvery = 10 * time.Millisecond
	// endWithin is how long the end of a session may take, unless a call into the library does not return.
	endWithin = 5 * time.Second
)

// session decides all about one connection. Only the goroutine of Publisher.Run uses its fields. The writer and calls
// use those of the first block, which do not change.
type session struct {
	*Publisher
	opened
	limits  wire.Limits
	events  *publish.Mailbox[happened] // what writer and calls report
	toWrite *publish.Mailbox[*entry]
	ended   chan struct{} // closed: helpers begin nothing more
	helpers sync.WaitGroup

	taken []happened // events, while learn takes them
	clock *clock
	progress
	failure error // why the session gives up the connection
	number  int   // counts the connections of the publisher
	heard   bool  // the broker has answered a message
	// impersonates: the broker has confirmed a message with the user_id of another user.
	impersonates bool

	routes   map[string]*route              // by exchange
	alone    *route                         // of messages that must be alone
	parts    map[string]map[*route]struct{} // of messages whose channel died, by exchange
	flights  []*route                       // with a flight under way, or with one before
	opening  []*route                       // that wait for an opener
	openers  int                            // busy ones
	channels int                            // open ones, of lanes
	places   places
	calls    []*call

	batch    []*outbox.Message
	rest     []item    // to be sent when the throttle allows it
	spare    []item    // its memory
	handed   []*entry  // to the writer, which has not reported them
	toSignal bool      // it must be woken
	pending  []*entry  // handed over and unanswered, in order; nil: settled meanwhile
	oldest   *entry    // of pending, at the last tick
	messages int       // handed over
	renewed  time.Time // when a nack last asked for a new lane
	throttle *throttle
	// While the throttle pauses: when it has waited long enough, and the number of answers when it began.
	stuck   time.Duration
	answers int
}

// happened is the event of a helper.
type happened struct {
	written int    // so many more messages were given to the library
	failed  error  // of the socket
	done    func() // decides after a call
}

// newSession takes over a new connection.
func newSession(p *Publisher, o opened) *session {
	s := &session{
		Publisher: p, opened: o, clock: newClock(), progress: progress{sendTimeout: p.cfg.SendTimeout},
		limits: wire.Limits{
			DefaultExchange: p.cfg.DefaultExchange,
			FrameMax:        o.connection.Config.FrameSize,
		},
		events:   publish.NewMailbox[happened](),
		toWrite:  publish.NewMailbox[*entry](),
		ended:    make(chan struct{}),
		number:   p.connections,
		routes:   make(map[string]*route),
		parts:    make(map[string]map[*route]struct{}),
		alone:    &route{alone: true, size: 1},
		places:   newPlaces(p.cfg.MaxInFlight),
		throttle: newThrottle(newSendWindow(smallestWindow, p.cfg.MaxInFlight)),
	}
	s.mostBody.Store(0) // the limit of another node may differ, or somebody may have raised it
	return s
}

// serve publishes on a new connection until ctx is done or the connection is lost. When it returns, every message that
// was taken has its result.
func (p *Publisher) serve(ctx context.Context, s *session) {
	p.silent = false
	p.cameBack(s.opened)
	p.setState(publish.Ready, "")
	closed := s.connection.NotifyClose(make(chan *amqp091.Error, 1))
	s.helpers.Go(s.write)
	err := s.run(ctx, closed)
	if err != nil {
		p.connectionLost(s, err)
	}
	p.due.Store(time.Now().Add(endWithin).UnixNano())
	defer p.due.Store(0)
	close(s.ended)
	unsent := lostBeforeSent()
	if err != nil {
		unsent.detail += ": " + err.Error()
	}
	s.rejectUnsent(unsent)
	s.disconnect(err == nil)
	for range closed { // it is closed last, when every confirm is resolved
	}
	s.helpers.Wait()
	s.finish()
}

// run works until ctx is done, which is no error, or the connection is lost.
func (s *session) run(ctx context.Context, closed <-chan *amqp091.Error) error {
	blocked := s.connection.NotifyBlocked(make(chan amqp091.Blocking, 16))
	timer := time.NewTimer(tickEvery)
	defer timer.Stop()
	var ticks <-chan time.Time // nil while there is nothing to look for, so that an idle relay costs nothing
	for s.failure == nil {
		s.settleOldest()
		s.sendRest()
		s.wakeWriter()
		s.missing.judge(s)
		if ticks == nil && (len(s.pending) > 0 || len(s.calls) > 0 || s.stuck > 0) {
			timer.Reset(tickEvery)
			ticks = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case reason, ok := <-closed:
			if !ok || reason == nil {
				return errors.New("the connection was closed")
			}
			return fmt.Errorf("the connection was closed: %s", amqpdial.ExceptionText(reason))
		case b, ok := <-blocked:
			if !ok {
				blocked = nil // closed follows
			} else {
				s.block(b)
			}
		case <-s.events.Wake():
			s.learn()
		case <-s.inbox.Messages.Wake():
		case <-s.oldestConfirm():
		case <-ticks:
			ticks = nil
			s.tick()
		}
	}
	s.silent = true
	return s.failure
}

// wakeWriter comes after as many messages as possible, because a write costs as much as many messages.
func (s *session) wakeWriter() {
	if s.toSignal {
		s.toSignal = false
		s.toWrite.Signal()
	}
}

// block stops or resumes the sending.
func (s *session) block(b amqp091.Blocking) {
	log := s.cfg.Logger
	if s.socket.blocked.Store(b.Active); !b.Active {
		s.clock.resume()
		log.Info("RabbitMQ unblocked the connection: publishing resumes", "event", event.BrokerUnblocked)
		s.setState(publish.Ready, "")
		return
	}
	s.clock.stop()
	log.Warn("RabbitMQ blocked the connection: messages wait in the table until it accepts some again",
		"event", event.BrokerBlocked, "reason", b.Reason,
		"hint", "rabbitmq-diagnostics alarms  # free memory or disk of RabbitMQ")
	s.setState(publish.Blocked, "connection.blocked: "+b.Reason)
	s.rejectUnsent(s.hindrance())
}

// learn takes the events of the helpers.
func (s *session) learn() {
	s.taken = s.events.Take(s.taken)
	for _, h := range s.taken {
		for _, e := range s.handed[:h.written] {
			e.published = true
			e.began, e.wait.since = s.clock.at(e.beganAt), s.clock.at(e.writtenAt)
		}
		s.handed = s.handed[h.written:]
		if h.failed != nil {
			s.lose(h.failed)
		}
		if h.done != nil && !s.over() {
			h.done()
		}
	}
}

func (s *session) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// lose gives up the connection. Only the first reason counts.
func (s *session) lose(err error) {
	if s.failure == nil {
		s.failure = err
	}
}

// hear records an answer of the broker to a message: the outage is over.
func (s *session) hear() {
	if !s.heard {
		s.heard = true
		s.outages = 0
		s.setState(s.state.Phase, s.state.Detail)
	}
}

// tick looks for what takes too long.
func (s *session) tick() {
	now := s.clock.now()
	if s.stuck > 0 && now >= s.stuck {
		s.stuck = 0
		s.throttle.notAnswered(s.answers)
	}
	for _, c := range s.calls {
		if c.most = max(c.most, s.silence()); now-c.began >= c.most {
			s.lose(fmt.Errorf("%s: no answer within %v", c.what, c.most))
		}
	}
	for _, r := range slices.Clone(s.flights) {
		s.checkFlight(r, now)
	}
	if len(s.pending) > 0 && s.oldest == s.pending[0] {
		s.settleIf((*entry).resolved, false)
		s.expire()
	}
	if s.oldest = nil; len(s.pending) > 0 {
		s.oldest = s.pending[0]
	}
}

// call is a call into the library that has not returned.
type call struct {
	what  string
	began time.Duration
	most  time.Duration // how long it may take: it may be behind a large message
}

// do makes a call that blocks, in a goroutine of its own, and continues with done. The library would wait for the
// broker's answer without limit. The time limit is on the clock: it stops while the broker blocks the connection.
func (s *session) do(what string, work func() error, done func(error)) {
	c := &call{what: what, began: s.clock.now()}
	s.calls = append(s.calls, c)
	s.helpers.Go(func() {
		err := work()
		s.events.Put(happened{done: func() {
			s.calls = slices.DeleteFunc(s.calls, func(other *call) bool { return other == c })
			done(err)
		}})
	})
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

// finish reports all remaining messages, after the connection is closed and all helpers have ended.
func (s *session) finish() {
	s.learn()
	s.settleIf(func(*entry) bool { return true }, false)
	s.rejectUnsent(lostBeforeSent())
	s.missing.end()
}

// recovering reports whether the broker may still have to recover from what ended the last connection: it has confirmed
// nothing on this one, and the send timeout is not over. A quorum queue that has lost its leader rejects messages of
// new channels.
func (s *session) recovering() bool {
	return s.number > 1 && !s.heard && s.clock.now() < s.sendTimeout
}

// slowest is the rate, in bytes a second, with which a large message may travel. Buffers on the way take it at once.
const slowest = 64 << 10

// progress tells how far the broker has come. All messages go through one stream, so the answer to one shows that the
// broker has all that was sent before. The times are on the clock of the connection.
type progress struct {
	// sendTimeout bounds the wait for an answer, from the moment when the broker has the message.
	sendTimeout time.Duration
	lastAnswer  time.Duration // when the broker last answered a message
	reached     time.Duration // when the newest message with an answer was sent
	largest     int           // bytes of the largest unanswered message
}

// wait is the wait for the answer to a message.
type wait struct {
	since   time.Duration // when it was sent; or, if it has arrived, when that was found out
	arrived bool
}

// note records an answer to a message that was sent at began.
func (p *progress) note(began, now time.Duration) {
	p.lastAnswer = now
	p.reached = max(p.reached, began)
}

// silence is how long the broker may answer nothing.
func (p *progress) silence() time.Duration {
	return p.sendTimeout + time.Duration(p.largest)*time.Second/slowest
}

// late reports whether a wait takes too long: the send timeout after the broker must have it. Until somebody knows
// that, the broker must answer other messages.
func (p *progress) late(w *wait, now time.Duration) bool {
	if !w.arrived && p.reached > w.since {
		w.arrived, w.since = true, now
	}
	if w.arrived {
		return now-w.since >= p.sendTimeout
	}
	return now-max(w.since, p.lastAnswer) >= p.silence()
}

// clock measures the time in which the broker could have answered: it stops while the broker blocks the connection.
type clock struct {
	start   time.Time
	stopped time.Time     // zero: it runs
	idle    time.Duration // how long it was stopped
}

func newClock() *clock { return &clock{start: time.Now()} }

func (c *clock) now() time.Duration { return c.at(time.Now()) }

// at converts a time that is not before the end of the last stop.
func (c *clock) at(t time.Time) time.Duration {
	if !c.stopped.IsZero() && t.After(c.stopped) {
		t = c.stopped
	}
	return t.Sub(c.start) - c.idle
}

func (c *clock) stop() {
	if c.running() {
		c.stopped = time.Now()
	}
}

func (c *clock) resume() {
	if !c.running() {
		c.idle += time.Since(c.stopped)
		c.stopped = time.Time{}
	}
}

func (c *clock) running() bool { return c.stopped.IsZero() }
