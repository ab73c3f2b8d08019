package history

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
