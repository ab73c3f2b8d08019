package amqp

import "time"

// outagesToOpen is how many outages in a row open the breaker.
const outagesToOpen = 2

// breaker decides whether messages may leave. It is a plain state machine: the caller reports events with their times.
// It has one owner and no lock.
//
//	closed ──two outages in a row──▶ open ──cooldown over, or connected──▶ half-open
//	half-open ──the broker answered──▶ closed
//	half-open ──outage──▶ open
type breaker struct {
	cooldown time.Duration
	state    breakerState
	outages  int       // in a row, without an answer between them
	openedAt time.Time // the last opening
}

type breakerState uint8

const (
	breakerClosed breakerState = iota
	breakerOpen
	breakerHalfOpen
)

// String returns the name in metrics.
func (s breakerState) String() string {
	switch s {
	case breakerOpen:
		return "open"
	case breakerHalfOpen:
		return "half_open"
	}
	return "closed"
}

// outage records that the broker was lost, could not be reached, or gave no answer.
func (b *breaker) outage(now time.Time) {
	b.outages++
	if b.state == breakerHalfOpen || b.outages >= outagesToOpen {
		b.state = breakerOpen
		b.openedAt = now
	}
}

// answered records that the broker confirmed or rejected a message.
func (b *breaker) answered() {
	b.outages = 0
	b.state = breakerClosed
}

// connected records a new connection. One message may then be tried before the cooldown ends.
func (b *breaker) connected() {
	if b.state == breakerOpen {
		b.state = breakerHalfOpen
	}
}

// tick makes the breaker half-open after the cooldown.
func (b *breaker) tick(now time.Time) {
	if b.state == breakerOpen && now.Sub(b.openedAt) >= b.cooldown {
		b.state = breakerHalfOpen
	}
}
