package history

import "time"

// lingers is how long a fault can still cause duplicates after everything committed before its end has arrived: the
// server ends the session of a frozen relay after four seconds, and the duplicates wait in queues.
const lingers = 45 * time.Second

// timeFaults finds for each fault what came after its end.
func (s *state) timeFaults() {
	for _, f := range s.faults {
		if f.healed == never {
			continue
		}
		f.caughtUp = f.healed
		for _, m := range s.messages {
			if m.tx != nil && !m.Discarded {
				f.meet(m)
			}
		}
	}
	for _, f := range s.faults {
		s.judgeRecovery(f)
	}
}

// meet notes the times of a message that was committed before or after the end of the fault.
func (f *fault) meet(m *message) {
	fate := m.tx.fate()
	done := min(m.tx.endedAt, m.arrivedAt) // a message can arrive before the answer to its COMMIT
	if m.tx.outcome == Committed && !m.redelivered && f.healed <= done {
		f.firstArrival = min(f.firstArrival, m.arrivedAt)
		if m.prompt() && (m.arrived() || fate == meant && !m.deadLetter) {
			f.firstCommit = min(f.firstCommit, done)
		}
	}
	if f.healed <= m.tx.endedAt || !m.prompt() {
		return
	}
	switch {
	case m.arrived() && fate != dropped:
		f.caughtUp = max(f.caughtUp, m.arrivedAt)
	case fate == meant && !m.deadLetter:
		f.caughtUp = never
	}
}

// silence is the time from the first commit after a fault until the next new arrival; absent if nothing was committed.
func (s *state) silence(f *fault) (time.Duration, bool) {
	if f.firstCommit == never {
		return 0, false
	}
	return max(min(f.firstArrival, s.now)-f.firstCommit, 0), true
}

// judgeRecovery finds a fault after which nothing new arrived for too long. If another fault began meanwhile, that one
// is judged instead.
func (s *state) judgeRecovery(f *fault) {
	silence, known := s.silence(f)
	if !known || s.run.RecoverWithin <= 0 || silence <= s.run.RecoverWithin {
		return
	}
	until := f.firstCommit + s.run.RecoverWithin
	for _, other := range s.faults {
		if other != f && other.began < until && other.healed > f.healed {
			return
		}
	}
	arrival := "the first message committed from then on arrived at " + at(f.firstArrival)
	if f.firstArrival == never {
		arrival = "no message committed from then on arrived"
	}
	s.find(SlowRecovery, until,
		"fault %d (%s) was healed at %s, the next commit was answered at %s, and %s: %s of silence, and %s are allowed",
		f.ID, f.Name, at(f.healed), at(f.firstCommit), arrival, at(silence), at(s.run.RecoverWithin))
}

// judgeDuplicates assigns each duplicate to a fault that may have caused it, and finds those that no fault explains.
//
// If several faults qualify, the one that stops first is charged first, so that as few duplicates as possible remain
// unexplained. Each fault explains its Duplicates once, however many faults it overlaps. Unexplained duplicates are
// charged to the latest fault beyond its limit, so that the report shows where they happened.
func (s *state) judgeDuplicates() {
	for _, d := range s.duplicates {
		var newest, best *fault
		var stops time.Duration // when best does not explain duplicates any more
		pardoned := false
		for i, f := range s.faults {
			if f.began > d.at {
				break
			}
			newest = f
			until := s.answersUntil(i)
			if until < d.at {
				continue
			}
			pardoned = pardoned || f.Unmarked
			if f.charged < f.Duplicates && (best == nil || until < stops) {
				best, stops = f, until
			}
		}
		if d.unmarked && !pardoned {
			s.find(UnmarkedDuplicate, d.at, "%s arrived again at %s without x-possible-duplicate, "+
				"and a copy without it had arrived before; its first arrival was at %s", d, at(d.at), at(d.arrivedAt))
		}
		switch {
		case best != nil:
			best.charged++
		case newest == nil:
			s.find(TooManyDuplicates, d.at,
				"%s arrived again at %s, and no fault had begun; its first arrival was at %s",
				d, at(d.at), at(d.arrivedAt))
		default:
			newest.charged++
			s.find(TooManyDuplicates, d.at, "%s arrived again at %s, beyond what the faults until then allow; "+
				"the newest is %d (%s), which allows %d; its first arrival was at %s",
				d, at(d.at), newest.ID, newest.Name, newest.Duplicates, at(d.arrivedAt))
		}
	}
}

// answersUntil returns until when a fault explains duplicates: until the next fault begins, and at least until
// everything committed before its end has arrived and a little longer, because the copies wait behind the backlog.
func (s *state) answersUntil(i int) time.Duration {
	f := s.faults[i]
	if i+1 == len(s.faults) || f.caughtUp == never {
		return never
	}
	return max(f.caughtUp+lingers, s.faults[i+1].began)
}
