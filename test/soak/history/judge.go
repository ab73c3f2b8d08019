package history

import (
	"fmt"
	"time"
)

// verdict judges what was read. It is called once.
func (s *state) verdict() *Verdict {
	s.judgeTransactions()
	for _, m := range s.messages {
		s.judgeMessage(m)
	}
	s.judgeRows()
	s.judgeOrder()
	s.timeFaults()
	s.judgeDuplicates()
	v := &Verdict{Result: Pass, Counters: s.counters, Faults: len(s.faults)}
	switch {
	case s.counters.Acknowledged == 0:
		v.Incomplete = "no message was acknowledged, so the run proves nothing"
	case s.counters.OK == 0:
		v.Incomplete = "no message that was acknowledged was delivered, so the run proves nothing"
	}
	switch {
	case len(s.violations) > 0:
		v.Result = Fail
	case v.Incomplete != "":
		v.Result = Incomplete
	}
	v.Text = s.text(v)
	return v
}

// fate is what must happen to the messages of a transaction.
type fate uint8

const (
	open    fate = iota // nothing: the history contradicts itself, or the database lost an acknowledged commit
	meant               // committed: each message must arrive
	dropped             // not committed: none may arrive
)

func (t *transaction) fate() fate {
	switch {
	case t.outcome == RolledBack && t.kept, t.outcome == Committed && !t.kept:
		return open
	case t.kept:
		return meant
	default:
		return dropped
	}
}

func (s *state) judgeTransactions() {
	for _, t := range s.transactions {
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

func (s *state) judgeMessage(m *message) {
	if m.tx == nil {
		s.unexpected(m, "")
		return
	}
	s.count(m)
	fate := m.tx.fate()
	switch {
	case m.Discarded || fate == dropped && m.tx.outcome == RolledBack:
		s.unexpected(m, "")
	case fate == dropped:
		s.unexpected(m, ", and its business row is not in the database")
	case m.arrived() && !m.Kind.Arrives():
		s.unexpected(m, ", and nothing of its kind can be delivered")
	case m.tooSoon:
		s.unexpected(m, ", before COMMIT was sent")
	case fate == meant && !m.settled():
		s.find(Lost, m.tx.endedAt, "%s never arrived, and at the end it is in no table", m)
	}
}

// count adds a message to the counters for its transaction's outcome.
func (s *state) count(m *message) {
	c, t := &s.counters, m.tx
	done := m.arrived()
	if !m.Kind.Arrives() {
		done = m.deadLetter
	}
	switch {
	case m.Discarded:
		c.Discarded++
		return
	case t.outcome == RolledBack:
		c.RolledBack++
		return
	case t.outcome == Committed:
		c.Acknowledged++
		if done && t.kept {
			c.OK++
		}
	default:
		c.Unknown++
		if done && t.kept {
			c.Recovered++
		}
	}
	c.Attempt++
}

// unexpected reports a message that arrived or is in a table although it must not.
func (s *state) unexpected(m *message, why string) {
	if !m.settled() {
		return
	}
	where, when := "", s.now
	if m.arrived() {
		where, when = " arrived at "+at(m.arrivedAt)+",", m.arrivedAt
	}
	if m.inOutbox {
		where += " is in " + tableOf(false) + " at the end,"
	}
	if m.deadLetter {
		where += " is in " + tableOf(true) + " at the end,"
	}
	s.find(Unexpected, when, "%s%s%s", m, where[:len(where)-1], why)
}

// judgeRows judges what is in the tables at the end. The run waits until the outbox has drained before that.
//
// A dead letter or an attempt is needless if the message can be delivered and no fault with Refuses was active at any
// time since its transaction's end: then the broker had no reason to reject it.
func (s *state) judgeRows() {
	refused := time.Duration(-1)
	for _, f := range s.faults {
		if f.Refuses {
			refused = max(refused, f.healed)
		}
	}
	for i := range s.rows { // a key waits for its message that is scheduled after the end
		if r := &s.rows[i]; !r.DeadLetter && r.key != nil && !r.arrived() && r.NotBefore > r.at {
			r.key.heldFrom = min(r.key.heldFrom, r.Seq)
		}
	}
	for i := range s.rows {
		r := &s.rows[i]
		m := r.message
		if m.tx == nil || m.Discarded || m.tx.fate() == dropped {
			continue // unexpected, and reported already
		}
		switch needless := m.Kind.Arrives() && refused < m.tx.endingAt; {
		case r.DeadLetter && needless:
			s.find(NeedlessDeadLetter, r.at,
				"%s is a dead letter (%s), and nothing since its commit gave the broker a reason to reject it",
				m, r.describe())
		case r.Attempts > 0 && needless && !r.DeadLetter:
			s.find(NeedlessAttempt, r.at,
				"%s waits in the outbox (%s), and nothing since its commit gave the broker a reason to reject it",
				m, r.describe())
		}
		if !r.DeadLetter && !r.mayStay() {
			was := "did not arrive"
			if m.arrived() {
				was = "arrived at " + at(m.arrivedAt)
			}
			s.find(Stuck, r.at,
				"%s %s, and its row is still in the outbox at %s (%s)", m, was, at(r.at), r.describe())
		}
	}
}

// mayStay reports whether a row may be in the outbox at the end: it is not due yet, or waits for a row of its key that
// is not.
func (r *row) mayStay() bool {
	return !r.arrived() && (r.NotBefore > r.at || r.key != nil && r.key.heldFrom < r.Seq)
}

func (r *row) describe() string {
	text := fmt.Sprintf("attempts %d", r.Attempts)
	if r.Reason != "" {
		text += ", " + r.Reason
	}
	if r.LastError != "" {
		text += ": " + r.LastError
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
// a later message of its own transaction. There is no exception in the other direction: a message acknowledged before
// the writer continued must not come after it.
func (s *state) judgeOrder() {
	type stretch struct {
		key *key
		tx  *transaction
	}
	newestOf := make(map[stretch]*message) // within a transaction with an unanswered COMMIT
	for _, m := range s.arrivals {
		if m.key == nil || m.Discarded || m.deadLetter || m.tooSoon || m.tx.fate() == dropped {
			continue
		}
		before := m.key.newest
		if m.tx.outcome != Committed {
			within := stretch{m.key, m.tx}
			before = newestOf[within]
			if before == nil || before.Seq < m.Seq {
				newestOf[within] = m
			}
		}
		if before != nil && before.Seq > m.Seq && m.tx.fate() == meant && !m.redelivered {
			s.find(OutOfOrder, m.arrivedAt, "%s arrived first at %s, after %s, which arrived at %s",
				m, at(m.arrivedAt), before, at(before.arrivedAt))
		}
		if m.key.newest == nil || m.key.newest.Seq < m.Seq {
			m.key.newest = m
		}
	}
}
