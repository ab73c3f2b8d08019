package publish

import (
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	// fatalAlone is how often the broker must have ended the connection while a message was alone, and
	// have taken others in between, until that is charged to the message.
	fatalAlone = 3
	// mostQuarantined bounds the memory of messages.
	mostQuarantined = 100_000
)

// quarantine outlives connections: it remembers the messages that were in flight when the broker
// itself ended one. One of them may be what the broker cannot bear, and would end every connection
// for all of them; sent alone, it shows. Safe for concurrent use.
type quarantine struct {
	mu   sync.Mutex
	held map[outbox.Ref]record
	// answers counts those of the broker to any message.
	answers int
}

// record is of a message without an answer.
type record struct {
	// alone: it was the last time.
	alone bool
	times int // alone, with answers to others since the time before
	// answers there were the last time.
	answers int
}

func newQuarantine() *quarantine { return &quarantine{held: make(map[outbox.Ref]record)} }

// holds tells whether the message is to be sent alone, and whether after all others: it was alone
// when a connection ended.
func (q *quarantine) holds(m *outbox.Message) (held, last bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.held) == 0 {
		return false, false
	}
	r, held := q.held[m.Ref()]
	return held, r.alone
}

func urgencyOf(held, last bool) urgency {
	switch {
	case last:
		return wasAlone
	case held:
		return wasInFlight
	}
	return mayCloseLane
}

// add notes that the broker ended the connection before it answered to the message, which was alone
// or one of many. It tells how often that counts against it, 0 where it does not this time: where the
// broker has taken nothing else since the last time, it is the broker that is out of order.
func (q *quarantine) add(m *outbox.Message, alone bool) (times int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	ref := m.Ref()
	r, held := q.held[ref]
	if !held && len(q.held) >= mostQuarantined {
		clear(q.held)
	}
	counts := alone && held && q.answers > r.answers
	if counts {
		r.times++
	}
	q.held[ref] = record{alone: alone || r.alone, times: r.times, answers: q.answers}
	if !counts {
		return 0
	}
	return r.times
}

// answered is told of each message that the broker answered to.
func (q *quarantine) answered(m *outbox.Message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.answers++
	if len(q.held) > 0 {
		delete(q.held, m.Ref())
	}
}

// bore is told of a message that was alone for long, and the connection is still there: what it
// waits for is something else.
func (q *quarantine) bore(m *outbox.Message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r, held := q.held[m.Ref()]; held {
		q.held[m.Ref()] = record{answers: r.answers}
	}
}

// outlived is told of a message that got no answer in time, on a connection that is still there.
func (q *quarantine) outlived(m *outbox.Message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.held, m.Ref())
}

// endedByBroker holds for an exception that may be about a message: not for one that an operator
// or the broker's end brought.
func endedByBroker(e *amqp.Error) bool {
	return e != nil && e.Server && e.Code != amqp.ConnectionForced
}

// fatal is the verdict on a message that ends each connection on which it is sent.
func fatal(e *amqp.Error, times int) verdict {
	return verdict{
		outcome: outbox.Refused, reason: outbox.ReasonChannelClosed,
		detail: fmt.Sprintf("the broker ended the connection %d times when this message was sent alone: %s", times, exceptionText(e)),
	}
}
