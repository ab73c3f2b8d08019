package amqp

import (
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// places bounds the messages that wait for slow work: to be sent alone, in parts, or for the look-up of their
// exchange. Further ones go back to their rows, so that slow work leaves room for fast work.
type places struct {
	messages, bytes, most int
	// pace is how long a message takes, judging by the last look-ups. next is when the last message that found no place
	// may come again.
	pace time.Duration
	next time.Time
}

const (
	// slowShare of the messages in flight have places. It is less than the half of the window that must be free before
	// a full window takes streamed rows again. slowBytes is the same share of the relay's bytes.
	slowShare = 3.0 / 8
	slowBytes = 12 << 20
	// quickly is a wait that delays nobody much: messages that wait less need no share. firstPace is a guess.
	quickly   = 200 * time.Millisecond
	firstPace = time.Millisecond
	// soonest and latest bound the time after which a message that finds no place may come again.
	soonest = 100 * time.Millisecond
	latest  = 30 * time.Second
)

func newPlaces(maxInFlight int) places {
	return places{pace: firstPace, most: max(int(slowShare*float64(maxInFlight)), 1)}
}

// take takes a place for a message, or says when it may come again: each one at a time of its own, at the pace of the
// work.
func (p *places) take(m *outbox.Message, now time.Time) (taken bool, retryIn time.Duration) {
	quick := p.messages == 0 || time.Duration(p.messages)*p.pace < quickly
	if quick || p.messages < p.most && p.bytes+m.Size() <= slowBytes {
		p.add(m)
		return true, 0
	}
	wait := min(max(p.next.Sub(now), soonest)+p.pace, latest)
	p.next = now.Add(wait)
	return false, wait
}

func (p *places) add(m *outbox.Message) {
	p.messages++
	p.bytes += m.Size()
}

func (p *places) leave(m *outbox.Message) {
	p.messages--
	p.bytes -= m.Size()
}

// passed records how long messages have waited.
func (p *places) passed(took time.Duration, messages int) {
	p.pace += (took/time.Duration(max(messages, 1)) - p.pace) / 8
}

// admit takes a place for a message that must wait, or gives it back to the relay.
func (s *session) admit(one *item) bool {
	if one.placed || one.sent {
		return true
	}
	taken, retryIn := s.places.take(one.message, time.Now())
	if one.placed = taken; !taken {
		v := verdict{
			outcome: outbox.NotSent, retryIn: retryIn,
			detail: "too many messages wait for a look-up of their exchange, or to be sent alone",
		}
		s.giveUp(*one, v)
	}
	return taken
}

func (s *session) leavePlace(one *item) {
	if one.placed {
		s.places.leave(one.message)
		one.placed = false
	}
}
