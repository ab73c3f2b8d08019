package history

// judgeOrder looks, key by key, for messages that arrived for the first time after one of greater place.
//
// Left out are messages that had no business arriving, dead letters (the key goes on without them), a late message of
// which nobody knows whether it stayed committed, and a late message whose first copy that was seen is one that the
// broker handed out again: that copy lost its place in the queue.
//
// A message whose COMMIT was not answered may have been committed only after its writer had gone on with the key on
// another connection. Such transactions overlap, and the contract defines no order for them; so it may come late, but
// not after a later one of its own transaction. The other way round is no exception: what was acknowledged before the
// writer went on must not come after it.
func (s *state) judgeOrder() {
	type stretch struct{ key, transaction int32 }
	newest := make([]int32, len(s.keys)) // the message of greatest place that arrived, by key; -1 for none
	for i := range newest {
		newest[i] = -1
	}
	newestOf := make(map[stretch]int32) // the same within a transaction whose COMMIT was not answered
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
		if t.outcome != committed {
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
