package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
)

// printable keeps a text on one line and safe for a terminal: names and errors come from outside. It writes control
// characters as escapes such as \n and \x1b.
func printable(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRune(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}

// shortened returns printable text, cut to fit into a table.
func shortened(s string, most int) string {
	runes := []rune(printable(s))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most-1]) + "…"
}

// timeText formats a time for people. JSON uses RFC 3339 in UTC.
func timeText(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// durationText formats a duration in at most two units: 850ms, 12s, 3m20s, 5h2m, 4d3h.
func durationText(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 0:
		return "-" + durationText(-max(d, -math.MaxInt64)) // the smallest int64 has no positive counterpart
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

// bytesText formats a size: 12.0 kB, 300 MB.
func bytesText(n int64) string {
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

// countText puts commas between thousands.
func countText(n int64) string {
	digits := strconv.FormatInt(n, 10)
	first := len(digits) - len(strings.TrimPrefix(digits, "-"))
	for i := len(digits) - 3; i > first; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// countOf formats a count with its precision.
func countOf(c operator.Count) string {
	switch c.Precision {
	case operator.AtLeast:
		switch {
		case c.N == 0:
			return "none of the first rows"
		case c.N < operator.MostCounted:
			return "at least " + countText(c.N)
		}
		return "more than " + countText(c.N)
	case operator.Estimate:
		return "about " + countText(c.N)
	case operator.Unknown:
		return "unknown: counting took too long"
	}
	return countText(c.N)
}

// rowsText returns "1 row" or "2 rows".
func rowsText(n int64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return countText(n) + " " + one + "s"
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

// orNull is jsonTime for a time that may be absent.
func orNull(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	return new(jsonTime(*t))
}
