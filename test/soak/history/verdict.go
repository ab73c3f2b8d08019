package history

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
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
	// Incomplete says why nothing was proved; "": something was.
	Incomplete string
	Counters   Counters
	Faults     int

	// Text is for a person: the result, the counters that are not 0, and each fault and violation.
	Text string
}

// Counters are those of RabbitMQ's Jepsen tests, and more. They count messages; those that were discarded after a
// savepoint are only in Discarded.
type Counters struct {
	// Attempt: COMMIT was sent, or may have been.
	Attempt int `json:"attempt"`
	// Acknowledged: COMMIT was answered.
	Acknowledged int `json:"acknowledged"`
	// OK: acknowledged, and delivered at least once, or dead-lettered if the kind cannot arrive.
	OK int `json:"ok"`
	// Duplicated counts arrivals that are duplicates of the relay's, DuplicatedMarked those with x-possible-duplicate.
	// DuplicatedOvertaken were the first unmarked copy after a marked one: copies on two connections can overtake each
	// other, so these alone break no promise.
	Duplicated          int `json:"duplicated"`
	DuplicatedMarked    int `json:"duplicated_marked"`
	DuplicatedOvertaken int `json:"duplicated_overtaken"`
	// Recovered: as OK, of a transaction whose COMMIT was not answered. Unknown counts all of these.
	Recovered  int `json:"recovered"`
	Unknown    int `json:"unknown"`
	RolledBack int `json:"rolled_back"`
	Discarded  int `json:"discarded"`
	// Delivered: arrived at least once, whatever the outcome of its transaction.
	Delivered int `json:"delivered"`
	// Redelivered counts redeliveries by the broker.
	Redelivered int `json:"redelivered"`
	// DeadLettered and Waiting are in the tables at the end.
	DeadLettered int `json:"dead_lettered"`
	Waiting      int `json:"waiting"`
}

// Code names a kind of violation.
type Code string

// The codes of violations.
const (
	Lost               Code = "lost"                 // committed, but neither delivered nor in a table
	Unexpected         Code = "unexpected"           // delivered or in a table, but never committed
	UnmarkedDuplicate  Code = "unmarked_duplicate"   // a second copy without x-possible-duplicate
	TooManyDuplicates  Code = "too_many_duplicates"  // more than the faults so far allow
	OutOfOrder         Code = "out_of_order"         // arrived after a later message of its key
	Early              Code = "early"                // arrived before it was due
	Damaged            Code = "damaged"              // differs from what was written
	NeedlessDeadLetter Code = "needless_dead_letter" // dead-lettered, although the broker had no reason to reject it
	NeedlessAttempt    Code = "needless_attempt"     // the same of an attempt
	Stuck              Code = "stuck"                // still in the outbox when it should be empty
	TwoRows            Code = "two_rows"             // more than one row of one message
	SlowRecovery       Code = "slow_recovery"        // nothing new was delivered for too long after a fault
	LostCommit         Code = "lost_commit"          // the database lost a commit that it had acknowledged
	Contradiction      Code = "contradiction"        // the history contradicts itself
	Conduct            Code = "conduct"              // what Check was told
)

// violation is a promise that was broken, once or more often.
type violation struct {
	count int
	first []Finding // at most keptFindings; the rest are counted
}

const keptFindings = 20

// Finding is one occurrence of a violation.
type Finding struct {
	At   time.Duration // when it was noticed, since the start of the run
	What string        // a sentence: which message, transaction or key, and what was seen
}

// find records a violation at a time.
func (s *state) find(code Code, when time.Duration, format string, args ...any) {
	v := s.violations[code]
	if v == nil {
		v = &violation{}
		s.violations[code] = v
	}
	v.count++
	if len(v.first) < keptFindings {
		v.first = append(v.first, Finding{At: when, What: fmt.Sprintf(format, args...)})
	}
}

func (s *state) text(v *Verdict) string {
	var out strings.Builder
	out.WriteString(string(v.Result))
	if v.Incomplete != "" {
		out.WriteString(": " + v.Incomplete)
	}
	counters, _ := json.Marshal(s.counters) // numbers
	var pairs []string
	for _, pair := range regexp.MustCompile(`"(\w+)":([1-9]\d*)`).FindAllStringSubmatch(string(counters), -1) {
		pairs = append(pairs, pair[1]+" "+pair[2])
	}
	fmt.Fprintf(&out, "\n%s\n", strings.Join(pairs, ", "))
	for _, f := range s.faults {
		silence, caughtUp := "-", "-"
		if took, known := s.silence(f); known {
			silence = Short(took)
		}
		if f.caughtUp != never {
			caughtUp = Short(f.caughtUp - f.healed)
		}
		fmt.Fprintf(&out, "fault %d (%s): silence %s, caught up %s, duplicates %d/%d\n",
			f.ID, f.Name, silence, caughtUp, f.charged, f.Duplicates)
	}
	for _, code := range slices.Sorted(maps.Keys(s.violations)) {
		found := s.violations[code]
		slices.SortStableFunc(found.first, func(a, b Finding) int { return cmp.Compare(a.At, b.At) })
		fmt.Fprintf(&out, "%s %d\n", code, found.count)
		for _, f := range found.first {
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

// Short rounds to a readable precision.
func Short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= 100*time.Millisecond:
		return d.Round(time.Millisecond).String()
	default:
		return d.Round(10 * time.Microsecond).String()
	}
}
