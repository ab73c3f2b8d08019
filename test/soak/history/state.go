package history

import (
	"math"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// never is the time of an event that did not happen.
const never = time.Duration(math.MaxInt64)

// state is a history as read so far. Reading lines only fills it; judge judges what needs the end.
type state struct {
	now time.Duration // the latest time of a line

	messages     []*message
	byID         map[outbox.UUID]*message
	transactions []*transaction
	byNumber     map[int64]*transaction
	keys         map[string]*key
	arrivals     []*message // in the order of their first arrival
	duplicates   []duplicate
	rows         []row
	faults       []*fault
	byFault      map[int]*fault

	counters   map[string]int
	violations map[string][]Finding
}

type message struct {
	Message              // only the ID if no transaction told of it
	tx      *transaction // nil: no transaction told of it
	key     *key         // nil: none

	arrivedAt   time.Duration // its first arrival
	sawUnmarked bool          // a copy without x-possible-duplicate arrived
	redelivered bool          // the first recorded arrival was a redelivery by the broker
	tooSoon     bool          // it arrived before its transaction was about to end
	// It has a row at the end.
	inOutbox, deadLetter bool
}

func (m *message) arrived() bool { return m.arrivedAt != never }

// settled reports whether the message arrived or is in a table.
func (m *message) settled() bool { return m.arrived() || m.inOutbox || m.deadLetter }

// prompt reports whether the message should arrive as soon as it is committed, unless its key is blocked.
func (m *Message) prompt() bool { return m.NotBefore == 0 && m.Kind.arrives() && !m.Discarded }

type transaction struct {
	id       int64
	writer   int
	endingAt time.Duration
	endedAt  time.Duration // as endingAt, until its end is reported
	outcome  Outcome
	kept     bool
}

type key struct {
	waits  bool     // it has messages that are always rejected, which may legitimately block the others
	newest *message // for judgeOrder: the last message that arrived; nil: none
}

type duplicate struct {
	*message
	at       time.Duration
	unmarked bool // and an unmarked copy had arrived before
}

type row struct {
	Row
	*message
	at time.Duration
}

type fault struct {
	Fault
	began  time.Duration
	healed time.Duration // never: it was not healed within the history
	// caughtUp is when everything committed before healed had arrived; can be never.
	caughtUp time.Duration
}

func newState() *state {
	return &state{
		byID:       make(map[outbox.UUID]*message),
		byNumber:   make(map[int64]*transaction),
		keys:       make(map[string]*key),
		byFault:    make(map[int]*fault),
		counters:   make(map[string]int),
		violations: make(map[string][]Finding),
	}
}

// take passes a line to its handler.
func (s *state) take(l *line) {
	s.now = l.At
	switch {
	case l.Ending != nil:
		s.ending(l.Ending)
	case l.Ended != nil:
		t := s.byNumber[l.Ended.ID]
		t.outcome, t.endedAt = l.Ended.Outcome, s.now
	case l.Delivered != nil:
		s.delivered(l.Delivered)
	case l.Began != nil:
		f := &fault{Fault: *l.Began, began: s.now, healed: never, caughtUp: never}
		s.byFault[f.ID] = f
		s.faults = append(s.faults, f)
	case l.Healed != nil:
		s.byFault[*l.Healed].healed = s.now
	case l.Remaining != nil:
		s.remaining(l.Remaining)
	case l.Kept != nil:
		s.byNumber[*l.Kept].kept = true
	}
}

func (s *state) ending(told *Transaction) {
	t := &transaction{id: told.ID, writer: told.Writer, endingAt: s.now, endedAt: s.now}
	s.byNumber[t.id] = t
	s.transactions = append(s.transactions, t)
	for _, one := range told.Messages {
		m := s.message(one.ID)
		m.Message, m.tx, m.tooSoon = one, t, m.arrived()
		if one.Key == "" {
			continue
		}
		if s.keys[one.Key] == nil {
			s.keys[one.Key] = &key{}
		}
		m.key = s.keys[one.Key]
		m.key.waits = m.key.waits || !one.Kind.arrives()
	}
}

// message returns the message, or creates one that no transaction reported.
func (s *state) message(id outbox.UUID) *message {
	m := s.byID[id]
	if m == nil {
		m = &message{Message: Message{ID: id}, arrivedAt: never}
		s.byID[id] = m
		s.messages = append(s.messages, m)
	}
	return m
}

func (s *state) delivered(d *Delivery) {
	m := s.message(d.Message)
	if m.tx != nil && d.Content != m.Content {
		got, want := apart(d.Content, m.Content)
		s.find("damaged", s.now, "%s arrived at %s from %s with %q in place of %q", m, at(s.now), d.Queue, got, want)
	}
	if m.NotBefore > 0 && s.now < m.NotBefore-earlyTolerance {
		s.find("early", s.now, "%s arrived at %s from %s, %s before it was due at %s",
			m, at(s.now), d.Queue, at(m.NotBefore-s.now), at(m.NotBefore))
	}
	switch {
	case d.Redelivered && m.arrived():
		s.counters["redelivered"]++
		return
	case d.Redelivered:
		s.counters["redelivered"]++
		m.redelivered = true
	case m.arrived():
		s.duplicated(m, d.Marked)
	}
	if !m.arrived() {
		m.arrivedAt = s.now
		s.arrivals = append(s.arrivals, m)
		s.counters["delivered"]++
	}
	m.sawUnmarked = m.sawUnmarked || !d.Marked
}

// duplicated handles a copy that the relay sent again. Of two copies on two connections, the first and unmarked one can
// arrive second. So only a second unmarked copy breaks the promise.
func (s *state) duplicated(m *message, marked bool) {
	again := !marked && m.sawUnmarked
	s.counters["duplicated"]++
	switch {
	case marked:
		s.counters["duplicated_marked"]++
	case !again:
		s.counters["duplicated_overtaken"]++
	}
	s.duplicates = append(s.duplicates, duplicate{message: m, at: s.now, unmarked: again})
}

func (s *state) remaining(r *Row) {
	m := s.message(r.Message)
	if m.inOutbox || m.deadLetter {
		s.find("two_rows", s.now, "%s has more than one row at the end; one is in %s", m, tableOf(r.DeadLetter))
	}
	if r.DeadLetter {
		m.deadLetter = true
		s.counters["dead_lettered"]++
	} else {
		m.inOutbox = true
		s.counters["waiting"]++
	}
	s.rows = append(s.rows, row{Row: *r, message: m, at: s.now})
}

func tableOf(deadLetter bool) string {
	if deadLetter {
		return "the dead-letter table"
	}
	return "the outbox"
}
