package publish

import (
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	// fatalAlone is how often the broker must have ended the connection itself, without an answer in
	// between, when a message was sent alone, until that is charged to it.
	fatalAlone = 3
	// mostQuarantined bounds the memory of messages.
	mostQuarantined = 100_000
)

// quarantine outlives connections: it remembers the messages that were in flight when the broker
// itself ended one. One of them may be what the broker cannot bear, and would end every connection
// for all of them; sent alone, it shows. Safe for concurrent use.
type quarantine struct {
	mu sync.Mutex
	// alone counts how often it happened when the message was sent alone; what has an answer leaves.
	alone map[outbox.Ref]int
}

func newQuarantine() *quarantine { return &quarantine{alone: make(map[outbox.Ref]int)} }

// holds tells whether the message is to be sent alone.
func (q *quarantine) holds(m *outbox.Message) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.alone) == 0 {
		return false
	}
	_, held := q.alone[m.Ref()]
	return held
}

// add notes that the broker ended the connection before it answered to the message. It tells how
// often that happened with the message alone.
func (q *quarantine) add(m *outbox.Message, alone bool) (times int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	ref := m.Ref()
	if _, held := q.alone[ref]; !held && len(q.alone) >= mostQuarantined {
		clear(q.alone)
	}
	times = q.alone[ref]
	if alone {
		times++
	}
	q.alone[ref] = times
	return times
}

// release is told of each message that the broker answered to.
func (q *quarantine) release(m *outbox.Message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.alone) > 0 {
		delete(q.alone, m.Ref())
	}
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
