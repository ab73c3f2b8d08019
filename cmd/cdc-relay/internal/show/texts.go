package show

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// Printable keeps a text on one line and safe for a terminal: names and errors come from outside. It writes control
// characters as escapes such as \n and \x1b.
func Printable(s string) string { return problem.OneLine(s) }

// Shortened returns printable text, cut to fit into a table.
func Shortened(s string, most int) string {
	runes := []rune(Printable(s))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most-1]) + "…"
}

// mostCell is how many characters of a value a list shows.
const mostCell = 60

// Cell is printable text, cut as in a list.
func Cell(s string) string { return Shortened(s, mostCell) }

// Reason is the code of why a message became a dead letter: that of its last error, by which Stats groups them.
func Reason(m operator.Message) string {
	code, _, _ := strings.Cut(ValueOr(m.LastError, m.Reason), ":")
	return Cell(code)
}

// Time formats a time for people. JSON uses RFC 3339 in UTC.
func Time(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// Duration formats a duration in at most two units: 850ms, 12s, 3m20s, 5h2m, 4d3h.
func Duration(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 0:
		return "-" + Duration(-max(d, -math.MaxInt64)) // the smallest int64 has no positive counterpart
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
}

// Bytes formats a size: 12.0 kB, 300 MB.
func Bytes(n int64) string {
	units := [...]string{"B", "kB", "MB", "GB", "TB", "PB"}
	size, unit := float64(n), 0
	for ; size >= 1024 && unit < len(units)-1; unit++ {
		size /= 1024
	}
	if unit == 0 || size >= 100 {
		return fmt.Sprintf("%.0f %s", size, units[unit])
	}
	return fmt.Sprintf("%.1f %s", size, units[unit])
}

// Number puts commas between thousands.
func Number(n int64) string {
	digits := strconv.FormatInt(n, 10)
	first := len(digits) - len(strings.TrimPrefix(digits, "-"))
	for i := len(digits) - 3; i > first; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Count formats a count with its precision.
func Count(c operator.Count) string {
	switch c.Precision {
	case operator.AtLeast:
		switch {
		case c.N == 0:
			return "none of the first rows"
		case c.N < operator.MostCounted:
			return "at least " + Number(c.N)
		}
		return "more than " + Number(c.N)
	case operator.Estimate:
		return "about " + Number(c.N)
	case operator.Unknown:
		return "unknown: counting took too long"
	}
	return Number(c.N)
}

// Plural returns "1 row" or "2 rows".
func Plural(n int64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return Number(n) + " " + one + "s"
}

// seconds converts a duration for JSON, with milliseconds.
func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

// jsonTime returns a time for JSON. Years that JSON cannot express become the first or last that it can.
func jsonTime(t time.Time) time.Time {
	t = t.UTC()
	switch year := t.Year(); {
	case year < 1:
		return time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	case year > 9999:
		return time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	}
	return t
}

// timeOrNull is jsonTime for a time that may be absent.
func timeOrNull(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	return new(jsonTime(*t))
}

// ValueOr returns the value, or the other text for nil.
func ValueOr(s *string, otherwise string) string {
	if s == nil {
		return otherwise
	}
	return *s
}

// OrElse returns the text, or the other text for "".
func OrElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// OneLine returns a text on one line, without control characters.
func OneLine(s string) string {
	lines := strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })
	for i := range lines {
		lines[i] = Printable(strings.TrimSpace(lines[i]))
	}
	return strings.Join(lines, "; ")
}

// StateText is a state in words.
func StateText(s operator.State) string { return strings.ReplaceAll(string(s), "_", " ") }

// NextTime says when a row may be published; "": at once.
func NextTime(w operator.Message) string {
	switch {
	case w.State == operator.Locked:
		return fmt.Sprintf("Postgres process %d", w.LockedBy)
	case w.AvailableAt != nil && w.AvailableAt.After(w.ReadAt):
		return "in " + Duration(w.AvailableAt.Sub(w.ReadAt))
	}
	return ""
}

func rowCount(c operator.Count) string { return countOf(c, "row") }

// countOf is Plural for a count that may be inexact.
func countOf(c operator.Count, one string) string {
	if isOne(c) {
		return "1 " + one
	}
	return Count(c) + " " + one + "s"
}

// verbOf returns the verb that goes with countOf.
func verbOf(c operator.Count, one, many string) string {
	if isOne(c) {
		return one
	}
	return many
}

func isOne(c operator.Count) bool { return c.N == 1 && c.Precision == operator.Exact }

// sessionText describes a session.
func sessionText(pid int32, s *operator.Session, now time.Time) string {
	text := fmt.Sprintf("Postgres process %d", pid)
	switch {
	case s == nil:
		return text
	case s.Application != nil && *s.Application != "":
		text = Printable(*s.Application) + ", " + text
	}
	if s.Client != nil {
		text += " from " + *s.Client
	}
	if s.Since != nil {
		text += ", for " + Duration(max(now.Sub(*s.Since), 0))
	}
	return text
}

// Milliseconds formats a latency: 1.2 ms.
func Milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// ChangedText says what a change has done.
func ChangedText(do operator.Verb, done operator.Changed) string {
	switch do {
	case operator.Retry:
		text := "made " + Plural(done.Done, "message") + " due now"
		if done.Left > 0 {
			text += fmt.Sprintf("; %s left alone: a session has locked them", Number(done.Left))
		}
		return text
	case operator.Requeue:
		text := "resent " + Plural(done.Done, "dead letter")
		if done.NewIDs > 0 {
			text += fmt.Sprintf(", %s with a new id, since the old ones are not free", Number(done.NewIDs))
		}
		return text
	case operator.Replay:
		return "resent " + Plural(done.Done, "message")
	case operator.Purge:
		return "deleted " + Plural(done.Done, "dead letter")
	case operator.Bury:
		return "moved " + Plural(done.Done, "message") + " to the dead letters"
	}
	text, uncertain := "deleted "+Plural(done.Done, "message"), done.Done-done.Unpublished
	switch {
	case done.Done == 0:
		return text
	case uncertain == 0:
		return text + ", never published"
	case done.Done == 1:
		return text + "; a relay may have published it, or may be publishing it now"
	}
	return text + "; a relay may have published " + Number(uncertain) + " of them, or may be publishing them now"
}

// BehindText says how many messages wait behind those of a change.
func BehindText(n operator.Count) string {
	switch {
	case n.Precision == operator.Exact && n.N == 0:
		return "No message waits behind these."
	case n.N == 0:
		return "How many messages wait behind these is unknown."
	}
	text := countOf(n, "message") + verbOf(n, " waits", " wait") + " behind these in their ordering keys."
	return strings.ToUpper(text[:1]) + text[1:]
}

// LeftText says why a change left rows behind that it should have changed; "": it left none.
func LeftText(do operator.Verb, done operator.Changed) string {
	switch {
	case done.Left == 0 || do == operator.Retry:
		return ""
	case do == operator.Requeue:
		return fmt.Sprintf("the outbox rejects %s: %s", Plural(done.Left, "dead letter"), done.Why)
	case done.Left == 1:
		return "1 message is locked by another session"
	}
	return Number(done.Left) + " messages are locked by other sessions"
}
