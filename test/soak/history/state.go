package history

import (
	"math"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	maxSeq = math.MaxInt32
	// never is the time of an event that did not happen.
	never = time.Duration(math.MaxInt64)
	// noTransaction stands for the transaction of a message that no transaction reported.
	noTransaction = -1
	noKey         = -1
)

// state is a history as read so far. Reading lines only fills it; verdict judges what needs the end.
type state struct {
	run      Run
	lines    int
	now      time.Duration // the latest time of a line
	lastAt   time.Duration // the time of the last line
	ended    bool
	cutShort string

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
	texts        map[string]string // reasons and errors, each stored once

	counters   Counters
	violations map[Code]*Violation
}

// message is stored for every message of the run: 40 bytes, and about as much for its entries in the index and among
// the arrivals.
type message struct {
	id          outbox.UUID
	firstAt     time.Duration // of its first arrival
	transaction int32         // or noTransaction
	key         int32         // or noKey
	seq         int32
	kind        kind
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

// transaction is stored for every transaction: 40 bytes, and about as much for its entry in byID.
type transaction struct {
	id       int64
	endingAt time.Duration
	endedAt  time.Duration // as endingAt, until its end is reported
	writer   int32
	outcome  outcome
	kept     bool
}

type key struct {
	name string
	// waits: it has messages that may legitimately block the others: scheduled ones, or ones that are always rejected.
	waits bool
	// heldFrom is the position of the first message scheduled for a time after the end; maxSeq: none.
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

type outcome uint8

const (
	notHeard outcome = iota
	committed
	rolledBack
	unknown
)

func outcomeOf(o Outcome) outcome {
	switch o {
	case Committed:
		return committed
	case RolledBack:
		return rolledBack
	case Unknown:
		return unknown
	default:
		return notHeard
	}
}

// kind is an index into kindNames.
type kind uint8

// kindNames are the kinds that a history can have.
func kindNames() [6]Kind { return [...]Kind{Plain, Binary, Large, Scheduled, Unroutable, Impossible} }

func kindOf(k Kind) (kind, bool) {
	for i, name := range kindNames() {
		if name == k {
			return kind(i), true
		}
	}
	return 0, false
}

func (k kind) String() string { return string(kindNames()[k]) }

func (k kind) arrives() bool { return kindNames()[k].Arrives() }

func newState() *state {
	return &state{
		index:      make(map[outbox.UUID]int32),
		byID:       make(map[int64]int32),
		keyIndex:   make(map[string]int32),
		notBefore:  make(map[int32]time.Duration),
		faultIndex: make(map[int]int),
		texts:      make(map[string]string),
		violations: make(map[Code]*Violation),
	}
}

func (s *state) ending(t *Transaction) {
	if _, twice := s.byID[t.ID]; twice {
		s.find(Contradiction, s.now, "transaction %d was about to end twice", t.ID)
		return
	}
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
	if m.transaction != noTransaction {
		s.find(Contradiction, s.now, "message %s is reported by transaction %d and again by transaction %d",
			told.ID, s.transactions[m.transaction].id, s.transactions[place].id)
		return
	}
	if m.has(arrived) {
		m.is |= tooSoon
	}
	m.transaction = place
	m.kind, _ = kindOf(told.Kind)
	m.seq = int32(told.Seq)
	if told.Discarded {
		m.is |= discarded
	}
	if told.NotBefore > 0 {
		s.notBefore[i] = told.NotBefore
	}
	if told.Key != "" {
		m.key = s.keyOf(told.Key)
		if told.NotBefore > 0 || !m.kind.arrives() {
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
	s.keys = append(s.keys, key{name: name, heldFrom: maxSeq})
	return i
}

func (s *state) endedAs(e *ended) {
	i, known := s.byID[e.ID]
	if !known {
		s.find(Contradiction, s.now, "transaction %d ended (%s) and was never about to end", e.ID, e.Outcome)
		return
	}
	t := &s.transactions[i]
	if t.outcome != notHeard {
		s.find(Contradiction, s.now, "transaction %d ended twice: at %s, and now as %s", e.ID, at(t.endedAt), e.Outcome)
		return
	}
	t.outcome, t.endedAt = outcomeOf(e.Outcome), s.now
}

func (s *state) delivered(d *Delivery) {
	i := s.messageOf(d.Message)
	m := &s.messages[i]
	if d.Damaged != "" {
		s.counters.Damaged++
		s.find(Damaged, s.now,
			"%s arrived at %s%s, damaged: %s", s.describe(m), at(s.now), fromQueue(d.Queue), d.Damaged)
	}
	if due, waits := s.notBefore[i]; waits && s.now < due-s.run.earlyTolerance() {
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
		reason: s.text(r.Reason), lastError: s.text(r.LastError),
	})
}

func (s *state) text(t string) string {
	if kept, known := s.texts[t]; known {
		return kept
	}
	s.texts[t] = t
	return t
}

func (s *state) kept(id int64) {
	i, known := s.byID[id]
	if !known {
		s.find(Contradiction, s.now,
			"the business row of transaction %d is in the database, and the transaction was never about to end", id)
		return
	}
	t := &s.transactions[i]
	if t.kept {
		s.find(Contradiction, s.now, "transaction %d has two business rows", id)
	}
	t.kept = true
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
