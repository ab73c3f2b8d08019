package amqp

import (
	"errors"
	"fmt"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
)

// renewEvery is the least time between two lanes that nacks ask for: full queues send many nacks.
const renewEvery = 500 * time.Millisecond

// oldestConfirm returns the confirm of the oldest message; nil while the writer has it.
func (s *session) oldestConfirm() <-chan struct{} {
	if len(s.pending) == 0 || !s.pending[0].published || s.pending[0].err != nil {
		return nil
	}
	return s.pending[0].confirm.Done()
}

// settleOldest settles messages until one has no answer.
func (s *session) settleOldest() {
	for len(s.pending) > 0 && s.pending[0].resolved() {
		s.settle(s.pending[0], false)
		s.pending[0] = nil
		s.pending = s.pending[1:]
	}
}

// settleIf settles messages. More may be sent meanwhile.
func (s *session) settleIf(done func(*entry) bool, timedOut bool) {
	for i := 0; i < len(s.pending); i++ {
		if e := s.pending[i]; done(e) {
			s.settle(e, timedOut)
			s.pending[i] = nil
		}
	}
	s.pending = slices.DeleteFunc(s.pending, func(e *entry) bool { return e == nil })
}

// expire gives up messages that have waited too long. If the broker has answered nothing since, the connection is lost.
func (s *session) expire() {
	s.largest = 0
	if len(s.pending) == 0 || !s.clock.running() {
		return
	}
	largest := slices.MaxFunc(s.pending, func(a, b *entry) int {
		return len(a.message.Payload) - len(b.message.Payload)
	})
	s.largest = len(largest.message.Payload)
	now := s.clock.now()
	for _, e := range s.pending {
		// What is not published is being written, and the socket bounds that.
		if e.published && s.late(&e.wait, now) && !e.wait.arrived && s.lastAnswer < e.wait.since {
			err := fmt.Errorf("RabbitMQ confirmed nothing within %v", s.silence())
			if s.largest >= 1<<20 {
				err = fmt.Errorf("%w; the largest message in flight is row %d with %d bytes",
					err, largest.message.ID, s.largest)
			}
			s.lose(err)
			return
		}
	}
	s.settleIf(func(e *entry) bool { return e.published && s.late(&e.wait, now) }, true)
}

// settle decides on a message, and tells rejections, which cost an attempt, from outages, which cost none. The order
// matters: the library marks the connection first, then its channels, and then it resolves confirms.
func (s *session) settle(e *entry, timedOut bool) {
	l := e.lane
	s.takeReturns(l)
	returned := e.returned
	if one := l.returned.answered(e); one != nil {
		returned = one
	}
	acked := e.err == nil && e.unfit == nil && e.published && e.confirm.Acked()
	channelClosed := l.channel.IsClosed()
	lost := s.over() || s.connection.IsClosed() || e.err != nil && !errors.Is(e.err, amqp091.ErrClosed)
	if !acked && !timedOut && !lost && e.unfit == nil && channelClosed {
		l.dead = append(l.dead, e)
		s.bury(l)
		return
	}
	l.unanswered--
	s.throttle.answered(e.epoch)
	var v verdict
	switch {
	case e.unfit != nil:
	case acked && returned != nil && !saysNothing(returned):
		v = verdict{outcome: outbox.Rejected, reason: outbox.ReasonUnroutable, detail: returnText(returned)}
	case acked:
		v = verdict{outcome: outbox.Confirmed}
	case timedOut:
		v = verdict{outcome: outbox.Unknown, detail: "RabbitMQ did not confirm in time"}
		s.suspects.Clear(e.message)
		l.timedOut++ // it may still make the broker close the channel
	case lost:
		v = s.lostWith(e)
	case s.recovering():
		v = verdict{outcome: outbox.Unknown, detail: "RabbitMQ answered with a nack right after an outage"}
	default:
		v = verdict{
			outcome: outbox.Rejected, reason: outbox.ReasonNack,
			detail: fmt.Sprintf("RabbitMQ answered with a nack: a queue, or RabbitMQ itself, rejected the message %s",
				routeText(e.parcel.key, e.parcel.exchange)),
		}
	}
	if e.unfit != nil {
		s.unfit(e.message, e.unfit, e.resent)
	} else {
		s.report(e, s.noted(e, v))
	}
	s.landed(e, !timedOut)
	if !acked && !lost && e.unfit == nil {
		s.renew(l, timedOut)
	}
	if len(l.dead) > 0 {
		s.bury(l)
	}
	s.closeSealed(l)
}

// renew gives the exchange another lane. After a timeout, the library remembers each later confirm of the channel until
// the missing one comes: the memory would grow. After a nack, the channel may have met a quorum queue without a leader.
// RabbitMQ 3.10 then rejects everything for that queue on that channel until the old leader is back.
func (s *session) renew(l *lane, timedOut bool) {
	switch {
	case l.route.lane != l:
		return
	case !timedOut && time.Since(s.renewed) < renewEvery:
		return
	case !timedOut:
		s.renewed = time.Now()
	}
	s.replace(l.route)
}

// lostWith judges a message that had no answer when the connection was lost.
func (s *session) lostWith(e *entry) verdict {
	if errors.Is(e.err, amqp091.ErrClosed) {
		return lostBeforeSent()
	}
	reason := e.lane.reason()
	v := verdict{outcome: outbox.Unknown, detail: "the connection was lost before the confirm" + because(reason)}
	stated := endedByBroker(reason)
	if !stated && !cutByPeer(reason, e.err) {
		return v
	}
	times, culprit := s.suspects.Blame(e.message, publish.SessionEnd{
		Alone: e.suspect && e.flight == e.lane.route.flight, Stated: stated, Worked: s.heard,
		Lasted: s.clock.now() - e.wait.since,
	})
	if culprit {
		e.resent = true // the broker may have it nevertheless
		return fatal(times, reason)
	}
	return v
}

func (s *session) report(e *entry, v verdict) {
	if v.outcome == outbox.NotSent && e.resent {
		v.outcome = outbox.Unknown
	}
	s.inbox.Sink.Deliver(v.result(e.message, e.resent))
}

// noted records what an answer says about the broker.
func (s *session) noted(e *entry, v verdict) verdict {
	switch v.outcome {
	case outbox.Confirmed, outbox.Rejected, outbox.Impossible:
	default:
		return v
	}
	s.suspects.Clear(e.message)
	s.note(e.began, s.clock.now())
	if s.foreign(&e.parcel) && v.outcome == outbox.Confirmed && !s.impersonates {
		s.impersonates = true
		s.rest = append(s.alone.waiting, s.rest...) // they are ordinary now
		s.alone.waiting = nil
	}
	s.throttle.confirmed(time.Since(e.message.SentAt)) // not the clock, which stops while the broker blocks
	s.hear()
	if v.reason == outbox.ReasonTooLarge {
		_, most := bodySizes(v.detail)
		s.mostBody.Store(int64(most))
	}
	return v
}
