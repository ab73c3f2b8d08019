package publish

import (
	"cmp"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	// endsTogether is how many sessions must end without an answer to a message before it is sent alone. A single end
	// rarely has to do with a message.
	endsTogether = 2
	// endsAlone is how many sessions must end at a message sent alone before it counts as rejected.
	endsAlone = 3
	// mostSuspects bounds the memory of messages.
	mostSuspects = 100_000
)

// suspects finds the message that ends every session: a connection to the broker, or a handler. Each message that was
// unanswered at an end is sent alone later, so that only the culprit is charged. The list outlives sessions and is safe
// for concurrent use.
type suspects struct {
	mu    sync.Mutex
	found map[outbox.Ref]suspect
	// working counts the handlers that answered something before they ended.
	working int
}

// suspect is a message that was unanswered when a session ended. The zero suspect is not on the list.
type suspect struct {
	together int           // ends while it was not alone; endsTogether at most
	alone    int           // ends while it was alone
	lasted   time.Duration // how long the last session lasted after the message was sent alone
	working  int           // suspects.working before the message was found, or when it was rejected last
}

// mustBeAlone reports whether the message must be sent alone.
func (s suspect) mustBeAlone() bool { return s.together >= endsTogether }

// sessionEnd is the end of a session without an answer to a message.
type sessionEnd struct {
	alone bool // no other message was in flight, or might have been the cause
	// stated: the other side gave a reason that speaks of an error. Then one end is enough to send the message alone.
	stated bool
	// worked: this connection answered another message. Without that the other side may itself be broken.
	worked bool
	// answered: this handler answered another message. That counts for its successors, too.
	answered bool
	lasted   time.Duration
}

func newSuspects() *suspects { return &suspects{found: make(map[outbox.Ref]suspect)} }

// of returns what is known of a message.
func (l *suspects) of(m *outbox.Message) suspect {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.found) == 0 {
		return suspect{}
	}
	return l.found[m.Ref()]
}

// blame records the end of a session that has not answered the message. It returns how many sessions ended while the
// message was alone, and whether the message is the culprit. After the first time alone, an end counts only if the
// other side works.
func (l *suspects) blame(m *outbox.Message, e sessionEnd) (alone int, culprit bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one, listed := l.found[m.Ref()]
	if !listed {
		if len(l.found) >= mostSuspects {
			clear(l.found)
		}
		if one.working = l.working; e.answered {
			one.working--
		}
	}
	worked := e.worked || l.working > one.working
	switch {
	case !e.alone && e.stated:
		one.together = endsTogether
	case !e.alone:
		one.together = min(one.together+1, endsTogether)
	case worked || one.alone == 0:
		one.alone, one.lasted = one.alone+1, e.lasted
	}
	culprit = e.alone && worked && one.alone >= endsAlone
	if culprit {
		one.working = l.working
	}
	l.found[m.Ref()] = one
	return one.alone, culprit
}

// clear forgets a message that was answered, or that a session survived.
func (l *suspects) clear(m *outbox.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.found) > 0 {
		delete(l.found, m.Ref())
	}
}

// handlerWorked records that a handler answered something before it ended.
func (l *suspects) handlerWorked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.working++
}

// workedSince reports whether a handler has answered another message since the message was found, or since it was
// rejected last.
func (l *suspects) workedSince(m *outbox.Message) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	one, listed := l.found[m.Ref()]
	return listed && l.working > one.working
}

// compare orders messages to send alone: first those that were never alone, then those that are charged, nearest to
// their rejection first, then those that nobody can judge.
func (l *suspects) compare(a, b *outbox.Message) int { return cmp.Compare(l.rank(a), l.rank(b)) }

func (l *suspects) rank(m *outbox.Message) int {
	one := l.of(m)
	switch {
	case one.alone == 0:
		return 0
	case l.workedSince(m):
		return 1 + max(endsAlone-one.alone, 0)
	default:
		return 1 + endsAlone + one.alone
	}
}
