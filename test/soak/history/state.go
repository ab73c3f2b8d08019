package history

import (
	"math"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	// never is the time of an event that did not happen.
	never = time.Duration(math.MaxInt64)
	// noTransaction stands for the transaction of a message that no transaction reported.
	noTransaction = -1
	noKey         = -1
)

// state is a history as read so far. Reading lines only fills it; verdict judges what needs the end.
type state struct {
	run   Run
	lines int
	now   time.Duration // the latest time of a line

	messages     []message
	index        map[outbox.UUID]int32 // into messages
	transactions []transaction
	byID         map[int64]int32 // into transactions
	keys         []key
	keyIndex     map[string]int32
	notBefore    map[int32]time.Duration // of scheduled messages
	arrivals     []int32                 // messages in the order of their first arrival
	duplicates   []duplicate
	rows         []row
	faults       []fault
	faultIndex   map[int]int

	counters   Counters
	violations map[Code]*Violation
}

type message struct {
	id          outbox.UUID
	firstAt     time.Duration // of its first arrival
	transaction int32         // or noTransaction
	key         int32         // or noKey
	seq         int32
	kind        Kind
	content     string
	is          marks
}

type marks uint16

const (
	arrived      marks = 1 << iota
	sawUnmarked        // a copy without x-possible-duplicate arrived
	rearrived          // the first recorded arrival was a redelivery by the broker
	discarded          // after a savepoint that was rolled back
	tooSoon            // arrived before its transaction was about to end
	inOutbox           // has a row at the end
	inDeadLetter       // has a row at the end
)

func (m *message) has(x marks) bool { return m.is&x != 0 }

type transaction struct {
	id       int64
	endingAt time.Duration
	endedAt  time.Duration // as endingAt, until its end is reported
	writer   int32
	outcome  Outcome
	kept     bool
}

type key struct {
	name string
	// waits: it has messages that may legitimately block the others: scheduled ones, or ones that are always rejected.
	waits bool
	// heldFrom is the position of the first message scheduled for a time after the end; math.MaxInt32: none.
	heldFrom int32
}

type duplicate struct {
	at       time.Duration
	message  int32
	unmarked bool // and an unmarked copy had arrived before
}

type row struct {
	at         time.Duration
	message    int32
	attempts   int
	deadLetter bool
	reason     string
	lastError  string
}

func newState() *state {
	return &state{
		index:      make(map[outbox.UUID]int32),
		byID:       make(map[int64]int32),
		keyIndex:   make(map[string]int32),
		notBefore:  make(map[int32]time.Duration),
		faultIndex: make(map[int]int),
		violations: make(map[Code]*Violation),
	}
}

func (s *state) ending(t *Transaction) {
	place := int32(len(s.transactions))
	s.byID[t.ID] = place
	s.transactions = append(s.transactions,
		transaction{id: t.ID, endingAt: s.now, endedAt: s.now, writer: int32(t.Writer)})
	for i := range t.Messages {
		s.announce(&t.Messages[i], place)
	}
}

// announce adds a message of a transaction that is about to end.
func (s *state) announce(told *Message, place int32) {
	i := s.messageOf(told.ID)
	m := &s.messages[i]
	if m.has(arrived) {
		m.is |= tooSoon
	}
	m.transaction = place
	m.kind, m.content = told.Kind, told.Content
	m.seq = int32(told.Seq)
	if told.Discarded {
		m.is |= discarded
	}
	if told.NotBefore > 0 {
		s.notBefore[i] = told.NotBefore
	}
	if told.Key != "" {
		m.key = s.keyOf(told.Key)
		if told.NotBefore > 0 || !m.kind.Arrives() {
			s.keys[m.key].waits = true
		}
	}
}

// messageOf returns the message, or creates one that no transaction reported.
func (s *state) messageOf(id outbox.UUID) int32 {
	if i, known := s.index[id]; known {
		return i
	}
	i := int32(len(s.messages))
	s.index[id] = i
	s.messages = append(s.messages, message{id: id, transaction: noTransaction, key: noKey})
	return i
}

func (s *state) keyOf(name string) int32 {
	if i, known := s.keyIndex[name]; known {
		return i
	}
	i := int32(len(s.keys))
	s.keyIndex[name] = i
	s.keys = append(s.keys, key{name: name, heldFrom: math.MaxInt32})
	return i
}

func (s *state) endedAs(e *ended) {
	t := &s.transactions[s.byID[e.ID]]
	t.outcome, t.endedAt = e.Outcome, s.now
}

func (s *state) delivered(d *Delivery) {
	i := s.messageOf(d.Message)
	m := &s.messages[i]
	if m.transaction != noTransaction && d.Content != m.content {
		s.counters.Damaged++
		got, want := apart(d.Content, m.content)
		s.find(Damaged, s.now, "%s arrived at %s%s with %q in place of %q",
			s.describe(m), at(s.now), fromQueue(d.Queue), got, want)
	}
	if due, waits := s.notBefore[i]; waits && s.now < due-earlyTolerance {
		s.counters.Early++
		s.find(Early, s.now, "%s arrived at %s%s, %s before it was due at %s",
			s.describe(m), at(s.now), fromQueue(d.Queue), at(due-s.now), at(due))
	}
	first := !m.has(arrived)
	switch {
	case first:
		m.is |= arrived
		m.firstAt = s.now
		if d.Redelivered {
			m.is |= rearrived
			s.counters.Redelivered++
		}
		s.arrivals = append(s.arrivals, i)
		s.counters.Delivered++
	case d.Redelivered:
		s.counters.Redelivered++
		return
	default:
		s.duplicated(i, d)
	}
	if !d.Marked {
		m.is |= sawUnmarked
	}
}

// duplicated handles a copy that the relay sent again. Of two copies on two connections, the first and unmarked one can
// arrive second. So only a second unmarked copy breaks the promise.
func (s *state) duplicated(i int32, d *Delivery) {
	s.counters.Duplicated++
	again := !d.Marked && s.messages[i].has(sawUnmarked)
	switch {
	case d.Marked:
		s.counters.DuplicatedMarked++
	case again:
		s.counters.DuplicatedUnmarked++
	default:
		s.counters.DuplicatedUnmarked++
		s.counters.DuplicatedOvertaken++
	}
	s.duplicates = append(s.duplicates, duplicate{at: s.now, message: i, unmarked: again})
}

func (s *state) remaining(r *Row) {
	i := s.messageOf(r.Message)
	m := &s.messages[i]
	if m.has(inOutbox | inDeadLetter) {
		s.find(TwoRows, s.now,
			"%s has more than one row at the end; one is in %s", s.describe(m), tableOf(r.DeadLetter))
	}
	if r.DeadLetter {
		m.is |= inDeadLetter
		s.counters.DeadLettered++
	} else {
		m.is |= inOutbox
		s.counters.Waiting++
	}
	s.rows = append(s.rows, row{
		at: s.now, message: i, attempts: r.Attempts, deadLetter: r.DeadLetter,
		reason: r.Reason, lastError: r.LastError,
	})
}

func tableOf(deadLetter bool) string {
	if deadLetter {
		return "the dead-letter table"
	}
	return "the outbox"
}

func fromQueue(queue string) string {
	if queue == "" {
		return ""
	}
	return " from " + queue
}
