package publish

import (
	"cmp"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	// EndsTogether is how many sessions must end without an answer to a message before it is sent alone. A single end
	// rarely has to do with a message.
	EndsTogether = 2
	// EndsAlone is how many sessions must end at a message sent alone before it counts as rejected.
	EndsAlone = 3
	// mostSuspects bounds the memory of messages.
	mostSuspects = 100_000
)

// Suspects finds the message that ends every session: a connection to the broker, or a handler. Each message that was
// unanswered at an end is sent alone later, so that only the culprit is charged. The list outlives sessions and is safe
// for concurrent use.
type Suspects struct {
	mu    sync.Mutex
	found map[outbox.Ref]Suspect
	// working counts the handlers that answered something before they ended.
	working int
}

// Suspect is a message that was unanswered when a session ended. The zero Suspect is not on the list.
type Suspect struct {
	together int           // ends while it was not alone; EndsTogether at most
	Alone    int           // ends while it was alone
	Lasted   time.Duration // how long the last session lasted after the message was sent alone
	working  int           // Suspects.working before the message was found, or when it was rejected last
}

// MustBeAlone reports whether the message must be sent alone.
func (s Suspect) MustBeAlone() bool { return s.together >= EndsTogether }

// SessionEnd is the end of a session without an answer to a message.
type SessionEnd struct {
	Alone bool // no other message was in flight, or might have been the cause
	// Stated: the other side gave a reason that speaks of an error. Then one end is enough to send the message alone.
	Stated bool
	// Worked: this connection answered another message. Without that the other side may itself be broken.
	Worked bool
	// Answered: this handler answered another message. That counts for its successors, too.
	Answered bool
	Lasted   time.Duration
}

// NewSuspects returns an empty list.
func NewSuspects() *Suspects { return &Suspects{found: make(map[outbox.Ref]Suspect)} }

// Of returns what is known of a message.
func (l *Suspects) Of(m *outbox.Message) Suspect {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.found) == 0 {
		return Suspect{}
	}
	return l.found[m.Ref()]
}

// Blame records the end of a session that has not answered the message. It returns how many sessions ended while the
// message was alone, and whether the message is the culprit. After the first time alone, an end counts only if the
// other side works.
func (l *Suspects) Blame(m *outbox.Message, e SessionEnd) (alone int, culprit bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one, listed := l.found[m.Ref()]
	if !listed {
		if len(l.found) >= mostSuspects {
			clear(l.found)
		}
		if one.working = l.working; e.Answered {
			one.working--
		}
	}
	worked := e.Worked || l.working > one.working
	switch {
	case !e.Alone && e.Stated:
		one.together = EndsTogether
	case !e.Alone:
		one.together = min(one.together+1, EndsTogether)
	case worked || one.Alone == 0:
		one.Alone, one.Lasted = one.Alone+1, e.Lasted
	}
	culprit = e.Alone && worked && one.Alone >= EndsAlone
	if culprit {
		one.working = l.working
	}
	l.found[m.Ref()] = one
	return one.Alone, culprit
}

// Clear forgets a message that was answered, or that a session survived.
func (l *Suspects) Clear(m *outbox.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.found) > 0 {
		delete(l.found, m.Ref())
	}
}

// HandlerWorked records that a handler answered something before it ended.
func (l *Suspects) HandlerWorked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.working++
}

// Compare orders messages to send alone: first those that were never alone, then those that are charged, nearest to
// their rejection first, then those that nobody can judge.
func (l *Suspects) Compare(a, b *outbox.Message) int { return cmp.Compare(l.rank(a), l.rank(b)) }

func (l *Suspects) rank(m *outbox.Message) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch one := l.found[m.Ref()]; {
	case one.Alone == 0:
		return 0
	case l.working > one.working: // a handler has answered another message since it was found, or rejected last
		return 1 + max(EndsAlone-one.Alone, 0)
	default:
		return 1 + EndsAlone + one.Alone
	}
}
