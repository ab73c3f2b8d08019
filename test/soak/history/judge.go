package history

import (
	"fmt"
	"time"
)

// verdict judges what was read. It is called once.
func (s *state) verdict() *Verdict {
	s.judgeTransactions()
	s.judgeMessages()
	s.judgeRows()
	s.judgeOrder()
	s.timeFaults()
	s.judgeDuplicates()
	v := &Verdict{
		Incomplete: s.incomplete(), Run: s.run, Lines: s.lines, Duration: Milliseconds(s.now),
		Delivery: s.delivery(), Faults: s.faultReports(), Violations: s.found(), Counters: s.counters,
	}
	switch {
	case len(v.Violations) > 0:
		v.Result = Fail
	case v.Incomplete != "":
		v.Result = Incomplete
	default:
		v.Result = Pass
	}
	return v
}

func (s *state) incomplete() string {
	switch {
	case s.counters.Acknowledged == 0:
		return "no message was acknowledged, so the run proves nothing"
	case s.counters.OK == 0:
		return "no message that was acknowledged was delivered, so the run proves nothing"
	default:
		return ""
	}
}

// fate is what must happen to the messages of a transaction.
type fate uint8

const (
	open    fate = iota // nothing: the history contradicts itself, or the database lost an acknowledged commit
	meant               // committed: each message must arrive
	dropped             // not committed: none may arrive
)

func (s *state) fateOf(t *transaction) fate {
	switch {
	case t.outcome == RolledBack && t.kept, t.outcome == Committed && !t.kept:
		return open
	case t.kept:
		return meant
	default:
		return dropped
	}
}

// refusedUntil returns when the last fault with Refuses was healed: never if one was not, and -1 if there was none.
func (s *state) refusedUntil() time.Duration {
	last := time.Duration(-1)
	for i := range s.faults {
		if s.faults[i].told.Refuses {
			last = max(last, s.faults[i].healed)
		}
	}
	return last
}

func (s *state) judgeTransactions() {
	for i := range s.transactions {
		t := &s.transactions[i]
		if t.outcome == RolledBack && t.kept {
			s.find(Contradiction, s.now,
				"transaction %d was rolled back at %s, as writer %d said, and its business row is in the database",
				t.id, at(t.endedAt), t.writer)
		}
		if t.outcome == Committed && !t.kept {
			s.find(LostCommit, s.now,
				"the database lost an acknowledged commit: transaction %d of writer %d was committed at %s, "+
					"and its business row is gone", t.id, t.writer, at(t.endedAt))
		}
	}
}

func (s *state) judgeMessages() {
	for i := range s.messages {
		m := &s.messages[i]
		if m.transaction == noTransaction {
			s.unexpected(m, "")
			continue
		}
		t := &s.transactions[m.transaction]
		fate := s.fateOf(t)
		s.count(m, t, fate)
		switch {
		case m.has(discarded) || fate == dropped && t.outcome == RolledBack:
			s.unexpected(m, "")
		case fate == dropped:
			s.unexpected(m, ", and its business row is not in the database")
		case m.has(arrived) && !m.kind.Arrives():
			s.unexpected(m, ", and nothing of its kind can be delivered")
		case m.has(tooSoon):
			s.unexpected(m, ", before COMMIT was sent")
		case fate != meant || m.settled():
		default:
			s.counters.Lost++
			s.find(Lost, t.endedAt, "%s never arrived, and at the end it is in no table", s.describe(m))
		}
	}
}

// settled reports whether the message arrived or is in a table.
func (m *message) settled() bool { return m.has(arrived | inOutbox | inDeadLetter) }

// count adds a message to the counters for its transaction's outcome.
func (s *state) count(m *message, t *transaction, fate fate) {
	c := &s.counters
	if m.has(discarded) {
		c.Discarded++
		return
	}
	if t.outcome == RolledBack {
		c.RolledBack++
		return
	}
	c.Attempt++
	done := m.has(arrived)
	if !m.kind.Arrives() {
		done = m.has(inDeadLetter)
	}
	switch {
	case t.outcome != Committed:
		c.Unknown++
		if t.kept && done {
			c.Recovered++
		}
		return
	case done && fate == meant:
		c.OK++
	}
	c.Acknowledged++
}

// unexpected reports a message that arrived or is in a table although it must not.
func (s *state) unexpected(m *message, why string) {
	if !m.settled() {
		return
	}
	s.counters.Unexpected++
	where, when := "", s.now
	if m.has(arrived) {
		where, when = fmt.Sprintf(" arrived at %s", at(m.firstAt)), m.firstAt
	}
	for _, table := range []struct {
		mark marks
		name string
	}{{inOutbox, tableOf(false)}, {inDeadLetter, tableOf(true)}} {
		switch {
		case !m.has(table.mark):
		case where == "":
			where = " is in " + table.name + " at the end"
		default:
			where += ", and is in " + table.name + " at the end"
		}
	}
	s.find(Unexpected, when, "%s%s%s", s.describe(m), where, why)
}

// judgeRows judges what is in the tables at the end. The run waits until the outbox has drained before that.
//
// A dead letter or an attempt is needless if the message can be delivered and no fault with Refuses was active at any
// time since its transaction's end: then the broker had no reason to reject it.
func (s *state) judgeRows() {
	s.holdKeys()
	refused := s.refusedUntil()
	for i := range s.rows {
		r := &s.rows[i]
		m := &s.messages[r.message]
		if m.transaction == noTransaction || m.has(discarded) {
			continue // unexpected, and reported already
		}
		t := &s.transactions[m.transaction]
		if s.fateOf(t) == dropped {
			continue
		}
		switch needless := m.kind.Arrives() && refused < t.endingAt; {
		case r.deadLetter && needless:
			s.counters.NeedlessDeadLetters++
			s.find(NeedlessDeadLetter, r.at,
				"%s is a dead letter (%s), and nothing since its commit gave the broker a reason to reject it",
				s.describe(m), r.describe())
		case r.attempts > 0 && needless && !r.deadLetter:
			s.counters.NeedlessAttempts++
			s.find(NeedlessAttempt, r.at,
				"%s waits in the outbox (%s), and nothing since its commit gave the broker a reason to reject it",
				s.describe(m), r.describe())
		}
		if !r.deadLetter && !s.mayStay(r) {
			was := "did not arrive"
			if m.has(arrived) {
				was = "arrived at " + at(m.firstAt)
			}
			s.find(Stuck, r.at,
				"%s %s, and its row is still in the outbox at %s (%s)", s.describe(m), was, at(r.at), r.describe())
		}
	}
}

// holdKeys finds the keys that wait for a message scheduled after the end.
func (s *state) holdKeys() {
	for i := range s.rows {
		r := &s.rows[i]
		m := &s.messages[r.message]
		if !r.deadLetter && m.key != noKey && !m.has(arrived) && s.notBefore[r.message] > r.at {
			s.keys[m.key].heldFrom = min(s.keys[m.key].heldFrom, m.seq)
		}
	}
}

// mayStay reports whether a row may be in the outbox at the end: it is not due yet, or waits for a row of its key that
// is not.
func (s *state) mayStay(r *row) bool {
	m := &s.messages[r.message]
	if m.has(arrived) {
		return false
	}
	return s.notBefore[r.message] > r.at || m.key != noKey && s.keys[m.key].heldFrom < m.seq
}

func (r *row) describe() string {
	text := fmt.Sprintf("attempts %d", r.attempts)
	if r.reason != "" {
		text += ", " + r.reason
	}
	if r.lastError != "" {
		text += ": " + r.lastError
	}
	return text
}

// judgeOrder looks in each key for a message whose first arrival comes after that of a later message.
//
// Excluded are messages that must not arrive, dead letters (the key continues without them), a late message that may or
// may not have stayed committed, and a late message whose first seen copy is a redelivery by the broker: that copy lost
// its position in the queue.
//
// A message with an unanswered COMMIT may have been committed only after its writer continued the key on another
// connection. Such transactions overlap, and the contract defines no order for them. So it may come late, but not after
// a
// later message of its own transaction. There is no exception in the other direction: a message acknowledged before the
// writer continued must not come after it.
func (s *state) judgeOrder() {
	type stretch struct{ key, transaction int32 }
	newest := make([]int32, len(s.keys)) // by key: the last message that arrived; -1: none
	for i := range newest {
		newest[i] = -1
	}
	newestOf := make(map[stretch]int32) // the same within a transaction with an unanswered COMMIT
	for _, i := range s.arrivals {
		m := &s.messages[i]
		if m.key == noKey || m.has(discarded|inDeadLetter|tooSoon) {
			continue
		}
		t := &s.transactions[m.transaction]
		fate := s.fateOf(t)
		if fate == dropped {
			continue
		}
		before := newest[m.key]
		within := stretch{m.key, m.transaction}
		if t.outcome != Committed {
			var known bool
			if before, known = newestOf[within]; !known {
				before = -1
			}
			if !known || s.messages[before].seq < m.seq {
				newestOf[within] = i
			}
		}
		if before != -1 && s.messages[before].seq > m.seq && fate == meant && !m.has(rearrived) {
			s.counters.OutOfOrder++
			s.find(OutOfOrder, m.firstAt, "%s arrived first at %s, after %s, which arrived at %s",
				s.describe(m), at(m.firstAt), s.describe(&s.messages[before]), at(s.messages[before].firstAt))
		}
		if n := newest[m.key]; n == -1 || s.messages[n].seq < m.seq {
			newest[m.key] = i
		}
	}
}
