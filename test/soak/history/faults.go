package history

import (
	"cmp"
	"slices"
	"sort"
	"time"
)

// lingers is how long a fault can still cause duplicates after everything committed before its end has arrived: the
// server ends the session of a frozen relay after four seconds, and the duplicates wait in queues.
const lingers = 45 * time.Second

type fault struct {
	told   Fault
	began  time.Duration
	healed time.Duration // never: it was not healed within the history
	// firstCommit is the first commit after healed of a message that should arrive. firstArrival is the first arrival
	// of a message committed after healed. caughtUp is when everything committed before healed had arrived. Each can be
	// never.
	firstCommit  time.Duration
	firstArrival time.Duration
	caughtUp     time.Duration
	duplicates   int
}

func (s *state) faultBegan(f *Fault) {
	s.faultIndex[f.ID] = len(s.faults)
	s.faults = append(s.faults, fault{
		told: *f, began: s.now, healed: never,
		firstCommit: never, firstArrival: never, caughtUp: never,
	})
}

// prompt reports whether a committed message should arrive at once: it can be delivered, is not scheduled, and no
// message of its key legitimately blocks it.
func (s *state) prompt(i int32) bool {
	m := &s.messages[i]
	_, waits := s.notBefore[i]
	return !waits && m.transaction != noTransaction && m.kind.Arrives() && !m.has(discarded) &&
		(m.key == noKey || !s.keys[m.key].waits)
}

// timeFaults finds for each fault what came after its end. It sorts the faults by the time they were healed. A fact
// about one message then holds for a run of faults: it is stored at one end of the run and carried to the other.
func (s *state) timeFaults() {
	var healed []*fault
	for i := range s.faults {
		if s.faults[i].healed != never {
			healed = append(healed, &s.faults[i])
		}
	}
	if len(healed) == 0 {
		return
	}
	slices.SortFunc(healed, func(a, b *fault) int { return cmp.Compare(a.healed, b.healed) })
	for _, f := range healed {
		f.caughtUp = f.healed
	}
	for i := range s.messages {
		s.timeMessage(int32(i), healed)
	}
	for i := 1; i < len(healed); i++ {
		healed[i].caughtUp = max(healed[i].caughtUp, healed[i-1].caughtUp)
	}
	for i := len(healed) - 2; i >= 0; i-- {
		healed[i].firstCommit = min(healed[i].firstCommit, healed[i+1].firstCommit)
		healed[i].firstArrival = min(healed[i].firstArrival, healed[i+1].firstArrival)
	}
	for i := range s.faults {
		s.judgeRecovery(&s.faults[i])
	}
}

// timeMessage stores the times of a message at the faults next to its commit.
func (s *state) timeMessage(i int32, healed []*fault) {
	m := &s.messages[i]
	if m.transaction == noTransaction || m.has(discarded) {
		return
	}
	t := &s.transactions[m.transaction]
	after := func(when time.Duration) int { // the first fault that was healed after it
		return sort.Search(len(healed), func(f int) bool { return healed[f].healed > when })
	}
	fate := s.fateOf(t)
	if t.outcome == Committed && !m.has(rearrived) {
		done := t.endedAt
		if m.has(arrived) {
			done = min(done, m.firstAt) // a message can arrive before the answer to its COMMIT
		}
		if n := after(done); n > 0 {
			f := healed[n-1]
			if m.has(arrived) {
				f.firstArrival = min(f.firstArrival, m.firstAt)
			}
			if s.prompt(i) && (m.has(arrived) || fate == meant && !m.has(inDeadLetter)) {
				f.firstCommit = min(f.firstCommit, done)
			}
		}
	}
	if n := after(t.endedAt); n < len(healed) && s.prompt(i) && (fate == meant || fate == open && m.has(arrived)) {
		switch {
		case m.has(arrived):
			healed[n].caughtUp = max(healed[n].caughtUp, m.firstAt)
		case m.has(inDeadLetter):
		default:
			healed[n].caughtUp = never
		}
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
	for i := range s.faults {
		if other := &s.faults[i]; other != f && other.began < until && other.healed > f.healed {
			return
		}
	}
	arrival := "the first message committed from then on arrived at " + at(f.firstArrival)
	if f.firstArrival == never {
		arrival = "no message committed from then on arrived"
	}
	s.find(SlowRecovery, until,
		"fault %d (%s) was healed at %s, the next commit was answered at %s, and %s: %s of silence, and %s are allowed",
		f.told.ID, f.told.Name, at(f.healed), at(f.firstCommit), arrival, at(silence), at(s.run.RecoverWithin))
}

func (s *state) faultReports() []FaultReport {
	reports := []FaultReport{}
	since := func(when, healed time.Duration) *Milliseconds {
		if when == never || healed == never {
			return nil
		}
		span := Milliseconds(when - healed)
		return &span
	}
	for i := range s.faults {
		f := &s.faults[i]
		r := FaultReport{
			ID:                f.told.ID,
			Name:              f.told.Name,
			Detail:            f.told.Detail,
			Began:             Milliseconds(f.began),
			Healed:            since(f.healed, 0),
			Recovery:          since(f.firstArrival, f.healed),
			CaughtUp:          since(f.caughtUp, f.healed),
			Duplicates:        f.duplicates,
			DuplicatesAllowed: f.told.Duplicates,
		}
		if silence, known := s.silence(f); known {
			r.Silence = since(silence, 0)
		}
		reports = append(reports, r)
	}
	return reports
}
