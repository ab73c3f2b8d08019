package publish

import (
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	// endsTogether is how many handlers must end without an answer to a message before it is sent alone. A single end
	// rarely has to do with a message.
	endsTogether = 2
	// endsAlone is how many handlers must end at a message sent alone before it counts as rejected.
	endsAlone = 3
	// aloneAfter is how long a handler gets other messages before one at which a handler ended alone.
	aloneAfter = time.Second
)

// suspects finds the message that makes each handler end or hang, so that it does not stop the others. It outlives
// handlers.
type suspects struct {
	found map[outbox.Ref]suspect
	// working counts the handlers that answered something before they ended.
	working int
}

// suspect is a message that a handler left without an answer.
type suspect struct {
	ends    int // handlers that ended without an answer to it
	working int // suspects.working before the message was found, or when it was rejected last
}

func newSuspects() *suspects { return &suspects{found: make(map[outbox.Ref]suspect)} }

// blame records that the handler that just ended has not answered the message. It returns how many ended while the
// message was alone, and whether it is the culprit. After the first time alone, an end counts only if a handler has
// answered another message since the message was found, or since it was rejected last. Otherwise no handler may work at
// all.
func (s *suspects) blame(m *outbox.Message, answered bool) (alone int, culprit bool) {
	one, listed := s.found[m.Ref()]
	if !listed {
		if len(s.found) >= mostAlone {
			clear(s.found)
		}
		if one.working = s.working; answered {
			one.working--
		}
	}
	heard := s.heard(one)
	if one.ends <= endsTogether || heard {
		one.ends++
	}
	culprit = heard && one.ends >= endsTogether+endsAlone
	if culprit {
		one.working = s.working
	}
	s.found[m.Ref()] = one
	return one.ends - endsTogether, culprit
}

// clear forgets a message that was answered.
func (s *suspects) clear(m *outbox.Message) {
	if len(s.found) > 0 {
		delete(s.found, m.Ref())
	}
}

// heard reports whether a handler has answered another message meanwhile.
func (s *suspects) heard(one suspect) bool { return s.working > one.working }

// rank orders messages to send alone: first those that were never alone, then those that are charged, nearest to their
// rejection first, then those that nobody can judge.
func (s *suspects) rank(m *outbox.Message) int {
	switch one := s.found[m.Ref()]; {
	case one.ends <= endsTogether:
		return 0
	case s.heard(one):
		return 1 + max(endsTogether+endsAlone-one.ends, 0)
	default:
		return endsAlone + one.ends
	}
}

// count returns how many handlers ended without an answer to the message.
func (s *suspects) count(m *outbox.Message) int { return s.found[m.Ref()].ends }
