package problem

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ShellWord quotes a word of a command in a Fix, if it needs quotes. The result is one line that a terminal shows as it
// is: a word with other characters is written as $'…' with octal bytes, which bash, zsh and ksh understand. Any other
// shell takes it as another word, and runs nothing in it. A word that begins with a dash can still be an option: see
// Dashed.
func ShellWord(s string) string {
	switch {
	case s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./:@%,=", r)
	}):
		return s
	case OneLine(s) == s && utf8.ValidString(s):
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '\'' || c == '\\' {
			fmt.Fprintf(&b, `\%03o`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return "$'" + b.String() + "'"
}

// Dashed returns "-- " if a word begins with a dash. Before the arguments of rabbitmqctl it ends the options.
func Dashed(words ...string) string {
	for _, word := range words {
		if strings.HasPrefix(word, "-") {
			return "-- "
		}
	}
	return ""
}
