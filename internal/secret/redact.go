package secret

import (
	"bytes"
	"regexp"
)

// Redact removes passwords, and what an Authorization header contains. It is the last line of defence: the text of an
// error can quote a URL.
func Redact(text []byte) []byte {
	if bytes.Contains(text, []byte("://")) {
		// Greedy up to the last @ of the word: a password can contain an @ that is not encoded.
		password := regexp.MustCompile(`(://[^\s:/@"'` + "`" + `]*):[^\s"'` + "`" + `]*@`)
		text = password.ReplaceAllFunc(text, func(found []byte) []byte {
			if string(found) == "://user:password@" { // an example
				return found
			}
			return password.ReplaceAll(found, []byte("$1:***@"))
		})
	}
	lower := bytes.ToLower(text)
	if bytes.Contains(lower, []byte("password")) {
		password := regexp.MustCompile(`(?i)(password\s*=\s*)('(?:[^'\\]|\\.)*'|(?:\\.|[^\s&'"\\])+)`)
		text = password.ReplaceAll(text, []byte("$1***"))
	}
	if bytes.Contains(lower, []byte("authorization")) || bytes.Contains(lower, []byte("bearer")) {
		const scheme, quotes = `(?:bearer|basic|digest|token|apikey)(?:\s+|%20|\+)`, `["'\\\[]*`
		header := regexp.MustCompile(`(?i)(authorization` + quotes + `(?:\s*[:=]\s*` + quotes + `(?:` + scheme +
			`)?|\s+(?:bearer|basic)\s+))[^\s"'\\,;&\]}]+`)
		text = header.ReplaceAll(text, []byte("$1***"))
		// A token has more than letters, unlike the words of a sentence.
		alone := regexp.MustCompile(`(?i)\b(bearer(?:\s+|%20))[\w.~+/-]*[\d_.~+/-][\w.~+/=-]*`)
		text = alone.ReplaceAll(text, []byte("$1***"))
	}
	return text
}
