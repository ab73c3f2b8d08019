package publish

import (
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	// fatalAlone is how often the broker must end the connection over a message sent alone before the message counts as
	// rejected.
	fatalAlone = 3
	// mostAlone bounds the memory of messages.
	mostAlone = 100_000
)

// aloneList has the messages that were in flight when the broker ended a connection. The broker may be unable to take
// one of them. Each is sent alone on the next connections, so that only that message is charged. The list outlives
// connections and is safe for concurrent use.
type aloneList struct {
	mu sync.Mutex
	// ended counts, for each message, the connections that ended while it was alone.
	ended map[outbox.Ref]int
}

func newAloneList() *aloneList { return &aloneList{ended: make(map[outbox.Ref]int)} }

// has reports whether the message is listed, and how often a connection ended while it was alone.
func (l *aloneList) has(m *outbox.Message) (listed bool, ended int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ended) == 0 {
		return false, 0
	}
	ended, listed = l.ended[m.Ref()]
	return listed, ended
}

// add records that the broker ended the connection without an answer to the message. It returns true if the message is
// the culprit: it was alone fatalAlone times. After the first time, a connection counts only if the broker answered
// another message on it (heard); otherwise the broker itself may be broken.
func (l *aloneList) add(m *outbox.Message, alone, heard bool) (culprit bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ref := m.Ref()
	ended, listed := l.ended[ref]
	if !listed && len(l.ended) >= mostAlone {
		clear(l.ended)
	}
	if alone && (heard || ended == 0) {
		ended++
	}
	l.ended[ref] = ended
	return alone && heard && ended >= fatalAlone
}

// remove removes a message that the broker answered, or kept without ending the connection.
func (l *aloneList) remove(m *outbox.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ended) > 0 {
		delete(l.ended, m.Ref())
	}
}

// endedByBroker reports whether an exception may be about a message. An operator's close and a broker shutdown are not.
func endedByBroker(e *amqp.Error) bool {
	return e != nil && e.Server && e.Code != amqp.ConnectionForced
}

// fatal returns the verdict on the culprit.
func fatal(e *amqp.Error) verdict {
	return verdict{
		outcome: outbox.Rejected, reason: outbox.ReasonChannelClosed,
		detail: fmt.Sprintf("RabbitMQ ended the connection %d times when this message was sent alone: %s", fatalAlone, exceptionText(e)),
	}
}
