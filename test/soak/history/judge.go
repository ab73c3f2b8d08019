package history

import (
	"cmp"
	"time"
)

// judge judges what was read.
func (s *state) judge() {
	s.judgeTransactions()
	for _, m := range s.messages {
		s.judgeMessage(m)
	}
	s.judgeRows()
	s.judgeOrder()
	s.judgeDuplicates()
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
			s.find("contradiction", s.now,
				"transaction %d was rolled back at %s, as writer %d said, and its business row is in the database",
				t.id, at(t.endedAt), t.writer)
		}
		if t.outcome == Committed && !t.kept {
			s.find("lost_commit", s.now,
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
	case m.arrived() && !m.Kind.arrives():
		s.unexpected(m, ", and nothing of its kind can be delivered")
	case m.tooSoon:
		s.unexpected(m, ", before COMMIT was sent")
	case fate == meant && !m.settled():
		s.find("lost", m.tx.endedAt, "%s never arrived, and at the end it is in no table", m)
	}
}

// count adds a message to the counters for its transaction's outcome. "ok" is what was acknowledged and delivered, or
// dead-lettered if its kind cannot arrive; "recovered" is the same of a transaction whose COMMIT was not answered.
func (s *state) count(m *message) {
	done := m.tx.kept && m.arrived()
	if !m.Kind.arrives() {
		done = m.tx.kept && m.deadLetter
	}
	counted, good := "unknown", "recovered"
	switch {
	case m.Discarded:
		counted, good = "discarded", ""
	case m.tx.outcome == RolledBack:
		counted, good = "rolled_back", ""
	case m.tx.outcome == Committed:
		counted, good = "acknowledged", "ok"
	}
	s.counters[counted]++
	if done && good != "" {
		s.counters[good]++
	}
}

// unexpected reports a message that arrived or is in a table although it must not.
func (s *state) unexpected(m *message, why string) {
	if !m.settled() {
		return
	}
	what, when := "is in "+tableOf(m.deadLetter)+" at the end", s.now
	if m.arrived() {
		what, when = "arrived at "+at(m.arrivedAt), m.arrivedAt
	}
	s.find("unexpected", when, "%s %s%s", m, what, why)
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
	attempts := 0 // of each message without a queue
	for i := range s.rows {
		r := &s.rows[i]
		m := r.message
		if m.tx == nil || m.Discarded || m.tx.fate() == dropped {
			continue // unexpected, and reported already
		}
		if r.DeadLetter && m.Kind == Unroutable {
			attempts = cmp.Or(attempts, r.Attempts)
		}
		switch calm := refused < m.tx.endingAt; {
		case r.DeadLetter && m.Kind.arrives() && calm:
			s.find("needless_dead_letter", r.at,
				"%s is a dead letter (%s), and nothing since its commit gave the broker a reason to reject it",
				m, r.describe())
		case r.DeadLetter && r.Reason != m.Reason && calm:
			s.find("wrong_dead_letter", r.at, "%s is a dead letter (%s), want %s", m, r.describe(), m.Reason)
		case r.DeadLetter && m.Kind == Unroutable && r.Attempts != attempts:
			s.find("wrong_dead_letter", r.at, "%s is a dead letter (%s), and another one had %d attempts",
				m, r.describe(), attempts)
		case r.Attempts > 0 && m.Kind.arrives() && calm:
			s.find("needless_attempt", r.at,
				"%s waits in the outbox (%s), and nothing since its commit gave the broker a reason to reject it",
				m, r.describe())
		}
		if !r.DeadLetter {
			was := "did not arrive"
			if m.arrived() {
				was = "arrived at " + at(m.arrivedAt)
			}
			s.find("stuck", r.at,
				"%s %s, and its row is still in the outbox at %s (%s)", m, was, at(r.at), r.describe())
		}
	}
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
			s.find("out_of_order", m.arrivedAt, "%s arrived first at %s, after %s, which arrived at %s",
				m, at(m.arrivedAt), before, at(before.arrivedAt))
		}
		if m.key.newest == nil || m.key.newest.Seq < m.Seq {
			m.key.newest = m
		}
	}
}

// lingers is how long a fault can still cause duplicates after everything committed before its end has arrived: the
// server ends the session of a frozen relay after four seconds, and the duplicates wait in queues.
const lingers = 45 * time.Second

// judgeDuplicates finds duplicates that no fault explains. A fault explains duplicates until the next fault begins, and
// at least until everything committed before its end has arrived and a little longer, because the copies wait behind
// the backlog.
func (s *state) judgeDuplicates() {
	for _, f := range s.faults {
		s.catchUp(f)
	}
	for _, d := range s.duplicates {
		explained, pardoned := false, false
		for i, f := range s.faults {
			until := never
			if i+1 < len(s.faults) && f.caughtUp != never {
				until = max(f.caughtUp+lingers, s.faults[i+1].began)
			}
			if f.began <= d.at && d.at <= until {
				explained, pardoned = explained || f.Duplicates, pardoned || f.Unmarked
			}
		}
		if d.unmarked && !pardoned {
			s.find("unmarked_duplicate", d.at, "%s arrived again at %s without x-possible-duplicate, "+
				"and a copy without it had arrived before; its first arrival was at %s", d, at(d.at), at(d.arrivedAt))
		}
		if !explained {
			s.find("unexplained_duplicate", d.at,
				"%s arrived again at %s, and no fault until then allows duplicates; its first arrival was at %s",
				d, at(d.at), at(d.arrivedAt))
		}
	}
}

// catchUp finds when everything committed before the end of the fault had arrived.
func (s *state) catchUp(f *fault) {
	if f.healed == never {
		return
	}
	f.caughtUp = f.healed
	for _, m := range s.messages {
		if m.tx == nil || m.tx.endedAt >= f.healed || !m.prompt() || m.key != nil && m.key.waits {
			continue
		}
		switch fate := m.tx.fate(); {
		case m.arrived() && fate != dropped:
			f.caughtUp = max(f.caughtUp, m.arrivedAt)
		case fate == meant && !m.deadLetter:
			f.caughtUp = never
		}
	}
}
