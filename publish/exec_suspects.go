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
	// ends counts, for each message, the handlers that ended without an answer to it.
	ends map[outbox.Ref]int
	// silent counts the last handlers in a row that answered nothing.
	silent int
}

func newSuspects() *suspects {
	return &suspects{ends: make(map[outbox.Ref]int), silent: endsAlone}
}

// ended records the end of a handler.
func (s *suspects) ended(answered bool) {
	s.silent++
	if answered {
		s.silent = 0
	}
}

// blame records that the handler that just ended has not answered the message. It returns how many ended while the
// message was alone, and whether it is the culprit. After the first time alone, an end counts only if one of the last
// handlers answered another message; otherwise no handler may work at all.
func (s *suspects) blame(m *outbox.Message) (alone int, culprit bool) {
	n, listed := s.ends[m.Ref()]
	if !listed && len(s.ends) >= mostAlone {
		clear(s.ends)
	}
	heard := s.silent < endsAlone
	if n <= endsTogether || heard {
		n++
	}
	s.ends[m.Ref()] = n
	return n - endsTogether, heard && n >= endsTogether+endsAlone
}

// clear forgets a message that was answered.
func (s *suspects) clear(m *outbox.Message) {
	if len(s.ends) > 0 {
		delete(s.ends, m.Ref())
	}
}

// count returns how many handlers ended without an answer to the message.
func (s *suspects) count(m *outbox.Message) int { return s.ends[m.Ref()] }
