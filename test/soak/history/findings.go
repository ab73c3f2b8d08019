package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// keptFindings is how many occurrences of a violation are reported in full; the rest are counted.
const keptFindings = 20

// find records a violation at a time.
func (s *state) find(code Code, when time.Duration, format string, args ...any) {
	v := s.violations[code]
	if v == nil {
		v = &Violation{Code: code}
		s.violations[code] = v
	}
	v.Count++
	if len(v.First) < keptFindings {
		v.First = append(v.First, Finding{At: Milliseconds(when), What: fmt.Sprintf(format, args...)})
	}
}

// found returns the violations by code, each by time.
func (s *state) found() []Violation {
	all := []Violation{}
	for _, code := range slices.Sorted(maps.Keys(s.violations)) {
		v := s.violations[code]
		slices.SortStableFunc(v.First, func(a, b Finding) int { return cmp.Compare(a.At, b.At) })
		all = append(all, *v)
	}
	return all
}

// apart returns what two texts have at their first difference.
func apart(a, b string) (string, string) {
	const most = 60
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	n = max(0, n-most/2)
	return a[n:min(len(a), n+most)], b[n:min(len(b), n+most)]
}

// describe names a message in a sentence.
func (s *state) describe(m *message) string {
	if m.transaction == noTransaction {
		return fmt.Sprintf("message %s, which no transaction told of,", m.id)
	}
	key := ""
	if m.key != noKey {
		key = fmt.Sprintf(", key %s place %d", s.keys[m.key].name, m.seq)
	}
	if m.has(discarded) {
		key += ", discarded after a savepoint"
	}
	t := &s.transactions[m.transaction]
	return fmt.Sprintf("message %s (%s%s; transaction %d of writer %d, %s)",
		m.id, m.kind, key, t.id, t.writer, t.describe())
}

func (t *transaction) describe() string {
	switch t.outcome {
	case Committed:
		return "committed at " + at(t.endedAt)
	case RolledBack:
		return "rolled back at " + at(t.endedAt)
	case Unknown:
		return "COMMIT not answered at " + at(t.endedAt)
	default:
		return "about to end at " + at(t.endingAt) + " and not reported again"
	}
}
