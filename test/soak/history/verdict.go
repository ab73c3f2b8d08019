package history

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Result is the result of a verdict.
type Result string

// The results.
const (
	Pass Result = "pass"
	Fail Result = "fail"
	// Incomplete: there is no violation, but the history proves nothing.
	Incomplete Result = "incomplete"
)

// Verdict is the result of checking a history.
type Verdict struct {
	Result Result
	// Counters are those of RabbitMQ's Jepsen tests, and more; see count.
	Counters map[string]int
	// Text is for a person: the result, the counters, and each violation.
	Text string
}

// Finding is one occurrence of a violation.
type Finding struct {
	At   time.Duration // when it was noticed, since the start of the run
	What string        // a sentence: which message, transaction or key, and what was seen
}

// Check reads what a Recorder wrote until it was closed, and judges it. It also reports what the history does not show:
// the conduct of the relays.
func Check(lines io.Reader, conduct ...Finding) (*Verdict, error) {
	s := newState()
	in := json.NewDecoder(lines)
	for n := 1; ; n++ {
		var l line
		if err := in.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read line %d of the history: %w", n, err)
		}
		s.take(&l)
	}
	for _, found := range conduct {
		s.find("conduct", found.At, "%s", found.What)
	}
	s.judge()
	v := &Verdict{Result: Pass, Counters: s.counters}
	switch {
	case len(s.violations) > 0:
		v.Result = Fail
	case s.counters["ok"] == 0:
		v.Result = Incomplete
	}
	v.Text = s.text(v.Result)
	return v, nil
}

// find records a violation at a time.
func (s *state) find(code string, when time.Duration, format string, args ...any) {
	s.violations[code] = append(s.violations[code], Finding{At: when, What: fmt.Sprintf(format, args...)})
}

func (s *state) text(result Result) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n", result)
	if s.counters["ok"] == 0 {
		fmt.Fprintln(&out, "nothing is proved: no message that was acknowledged was delivered")
	}
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(s.counters)) {
		pairs = append(pairs, fmt.Sprint(name, " ", s.counters[name]))
	}
	fmt.Fprintf(&out, "%s\n", strings.Join(pairs, ", "))
	for _, code := range slices.Sorted(maps.Keys(s.violations)) {
		found := s.violations[code]
		slices.SortStableFunc(found, func(a, b Finding) int { return cmp.Compare(a.At, b.At) })
		fmt.Fprintf(&out, "%s %d\n", code, len(found))
		const most = 20
		for _, f := range found[:min(most, len(found))] {
			fmt.Fprintf(&out, "  %s\n", f.What)
		}
	}
	return out.String()
}

// String names the message in a sentence.
func (m *message) String() string {
	if m.tx == nil {
		return fmt.Sprintf("message %s, which no transaction told of,", m.ID)
	}
	more := ""
	if m.key != nil {
		more = fmt.Sprintf(", key %s place %d", m.Key, m.Seq)
	}
	if m.Discarded {
		more += ", discarded after a savepoint"
	}
	return fmt.Sprintf("message %s (%s%s; transaction %d of writer %d, %s)",
		m.ID, m.Kind, more, m.tx.id, m.tx.writer, m.tx.describe())
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

// at formats a time of the run.
func at(d time.Duration) string { return d.Round(time.Millisecond).String() }
