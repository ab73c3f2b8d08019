package problem

import (
	"strconv"
	"strings"
	"unicode"
)

// OneLine keeps a text on one line and safe for a terminal: names and errors come from outside. It writes characters
// that are not printable as escapes such as \n, \x1b and \u202e.
func OneLine(s string) string {
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
