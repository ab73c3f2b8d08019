package history

import "time"

// judgeDuplicates assigns each duplicate to a fault that may have caused it, and finds those that no fault explains.
//
// A fault explains duplicates from its beginning until the next fault begins, and at least until everything committed
// before its end has arrived and a little longer (lingers): the copies wait in queues behind the backlog. If several
// faults
// qualify, the one that stops first is charged first, so that as few duplicates as possible remain unexplained. Each
// fault
// explains its Duplicates once, however many faults it overlaps. Unexplained duplicates are charged to the latest fault
// beyond
// its limit, so that the report shows where they happened.
func (s *state) judgeDuplicates() {
	until := s.answerUntil()
	begun := 0
	for _, r := range s.duplicates {
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
			if f.duplicates < f.told.Duplicates && (best == -1 || until[i] < until[best]) {
				best = i
			}
		}
		m := &s.messages[r.message]
		if r.unmarked && !pardoned {
			s.find(UnmarkedDuplicate, r.at, "%s arrived again at %s without x-possible-duplicate, "+
				"and a copy without it had arrived before; its first arrival was at %s",
				s.describe(m), at(r.at), at(m.firstAt))
		}
		switch {
		case best != -1:
			s.faults[best].duplicates++
		case begun == 0:
			s.find(TooManyDuplicates, r.at,
				"%s arrived again at %s, and no fault had begun; its first arrival was at %s",
				s.describe(m), at(r.at), at(m.firstAt))
		default:
			f := &s.faults[begun-1]
			f.duplicates++
			s.find(TooManyDuplicates, r.at, "%s arrived again at %s, beyond what the faults until then allow; "+
				"the newest is %d (%s), which allows %d; its first arrival was at %s",
				s.describe(m), at(r.at), f.told.ID, f.told.Name, f.told.Duplicates, at(m.firstAt))
		}
	}
}

// answerUntil returns until when each fault explains duplicates.
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
