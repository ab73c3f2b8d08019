package amqp

import (
	"errors"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/publish/wire"
)

// The wait for the answers to a flight. An exception comes at once. A confirm may take longer; then the flight is left
// to the reaper. Each wait without an answer halves the next one, because many messages may be for a queue that never
// answers.
const (
	longestWait  = 500 * time.Millisecond
	shortestWait = 50 * time.Millisecond
)

// flight is some messages on a lane without others. A lane that it leaves to the reaper is not used again.
type flight struct {
	lane *lane // nil until it is open
	// unanswered counts its messages without an answer; only the reaper uses it. At zero, landed is closed.
	unanswered int
	landed     chan struct{}
	// late: the wait for its answers was over before.
	late bool
}

// hindrance returns why nothing can be sent now; without an outcome, sending is possible.
func (s *session) hindrance() verdict {
	switch {
	case s.over():
		return lostBeforeSent()
	case !s.clock.running():
		return verdict{outcome: outbox.NotSent, detail: "RabbitMQ has blocked the connection"}
	}
	return verdict{}
}

// giveUp reports messages that are not sent (again). If one may have reached the broker before, it is Unknown, so that
// its retry is marked. The exception is wholeExchange: as Unknown, the message would be sent again for ever.
func (s *session) giveUp(messages []resend, v verdict) {
	for _, r := range messages {
		v := v
		if r.sent && !v.wholeExchange {
			v.outcome, v.reason = outbox.Unknown, ""
		}
		s.sink.Deliver(v.result(r.message, r.sent))
	}
}

// fly sends messages together, and waits for their answers. Afterwards each has its result, or the reaper has it.
func (s *session) fly(j *job) {
	stop := s.hindrance()
	if stop.outcome == 0 {
		stop = s.prepare(j)
	}
	if stop.outcome != 0 {
		s.giveUp(j.messages, stop)
		return
	}
	var entries []*entry
	for _, m := range j.messages {
		p, err := s.encode(m.message, m.sent || m.message.MayBeKnown())
		if err != nil {
			result := wire.Impossible(m.message, err)
			result.MaybeSent = m.sent
			s.sink.Deliver(result)
			continue
		}
		e := &entry{message: m.message, lane: j.flight.lane, parcel: p, resent: m.sent, flight: &j.flight}
		e.awaited.Store(j.suspect)
		entries = append(entries, e)
	}
	if j.flight.unanswered = len(entries); j.flight.unanswered == 0 {
		return
	}
	j.flight.landed = make(chan struct{})
	for _, e := range entries {
		s.inFlight.Add(1)
		s.sent.Add(reaperNews{entry: e})
		_ = e.send(s.clock) // the reaper handles the error
		s.sent.Signal()
	}
	timer := time.NewTimer(min(j.wait, s.sendTimeout/4))
	defer timer.Stop()
	select {
	case <-j.flight.landed:
	case <-timer.C:
		j.flight.late = true
	case <-s.ended:
		j.flight.late = true
		return
	}
	for _, e := range entries {
		e.awaited.Store(false)
		if j.flight.late {
			s.suspects.Clear(e.message) // the connection still exists
		}
	}
}

// prepare opens the lane of a flight. If nobody could ask for permissions, the broker is asked once more before: an
// authorization service that is down is an outage, and one that fails at an exchange or a key harms no other message.
func (s *session) prepare(j *job) (stop verdict) {
	asks := couldNotAsk(j.cause)
	err := s.prove(s.suspects.Of(j.messages[0].message))
	if err == nil && asks {
		err = s.probe()
	}
	if err != nil {
		s.lose(err)
		return verdict{outcome: outbox.NotSent, detail: err.Error()}
	}
	if asks && (j.guilty || aboutExchange(j.cause)) {
		if stop = exceptionVerdict(j.cause); aboutExchange(j.cause) {
			j.verdict = stop
		}
		return stop
	}
	if j.flight.lane == nil {
		j.flight.lane, stop = s.openLane(j, false)
	}
	return stop
}

// reservedName is a routing key that reaches no queue: RabbitMQ lets nobody choose a queue name with this prefix.
const reservedName = "amq.cdc-relay.probe"

var errUnproved = errors.New("the connection was lost before the answer to a probe")

// prove checks that the broker works before a flight, if connections may end at it, or nothing was answered since the
// last one was lost. The connection must survive twice the time that the message left the last one, and the broker must
// then answer a message that no queue receives. So neither an outage nor a proxy that ends each connection is taken for
// a fault of the message, and a system without other messages finds it, too.
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
	return s.probe()
}

// probe asks the broker for an answer, within the send timeout.
func (s *session) probe() error {
	err := s.limited("publish a probe", s.publishNothing)
	if err == nil {
		s.tellFirstAnswer()
	}
	return err
}

// publishNothing publishes a message that no queue receives, and waits for the answer. A missing permission is an
// answer, too; an authorization service that is down is none. It uses its own channel, which the broker may close.
func (c *link) publishNothing() error {
	channel, err := c.connection.Channel()
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
	case <-c.ended:
	}
	if c.over() || c.connection.IsClosed() {
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
