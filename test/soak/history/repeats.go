package history

import "time"

// judgeRepeats lays each repeat to a fault that may have caused it, and finds those that no fault explains.
//
// A fault answers for repeats from its beginning until the next fault begins, and at least until what was committed
// before its end has arrived and a little longer (lingers): the copies stand in queues behind the backlog. Where several
// answer, the one that stops first is charged first, so that as few repeats as possible are left over. Each has its
// Repeats once, however many faults it overlaps. What is left over is charged to the newest fault all the same, beyond
// what it allows, so that the report shows where it happened.
func (s *state) judgeRepeats() {
	until := s.answerUntil()
	begun := 0
	for _, r := range s.repeats {
		for begun < len(s.faults) && s.faults[begun].began <= r.at {
			begun++
		}
		best, pardoned := -1, false
		for i := range begun {
			if until[i] < r.at {
				continue
			}
			f := &s.faults[i]
			pardoned = pardoned || f.told.Unmarked
			if f.repeats < f.told.Repeats && (best == -1 || until[i] < until[best]) {
				best = i
			}
		}
		m := &s.messages[r.message]
		if r.unmarked && !pardoned {
			s.find(UnmarkedRepeat, r.at, "%s arrived again at %s without x-possible-duplicate, and a copy without it had arrived before; its first arrival was at %s",
				s.describe(m), at(r.at), at(m.firstAt))
		}
		switch {
		case best != -1:
			s.faults[best].repeats++
		case begun == 0:
			s.find(TooManyRepeats, r.at, "%s arrived again at %s, and no fault had begun; its first arrival was at %s", s.describe(m), at(r.at), at(m.firstAt))
		default:
			f := &s.faults[begun-1]
			f.repeats++
			s.find(TooManyRepeats, r.at, "%s arrived again at %s, beyond what the faults until then allow; the newest is %d (%s), which allows %d; "+
				"its first arrival was at %s", s.describe(m), at(r.at), f.told.ID, f.told.Name, f.told.Repeats, at(m.firstAt))
		}
	}
}

// answerUntil is until when each fault answers for repeats.
func (s *state) answerUntil() []time.Duration {
	until := make([]time.Duration, len(s.faults))
	for i := range s.faults {
		until[i] = never
		if f := &s.faults[i]; i+1 < len(s.faults) && f.caughtUp < never-lingers {
			until[i] = max(f.caughtUp+lingers, s.faults[i+1].began)
		}
	}
	return until
}
