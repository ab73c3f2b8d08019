package operator

import (
	"fmt"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// Pattern selects texts by their words, which are separated by dots, as a binding of a topic exchange does: * is one
// word, # is zero or more words. Inside a word, * is any part of that word. A backslash before *, #, a comma or a
// backslash makes it an ordinary character. The zero Pattern matches only the empty text.
type Pattern struct {
	text  string
	words []patternWord
}

// patternWord is one word of a pattern, or # for any number of words.
type patternWord struct {
	any bool
	// literals are what stands before, between and after the * of the word. A word without * has one.
	literals []string
}

// MostPattern is up to how many bytes a pattern with wildcards has.
const MostPattern = 1000

// ParsePattern parses what a person enters. Its error says which patterns are valid.
func ParsePattern(text string) (Pattern, error) {
	p := Pattern{text: text}
	if text == "" {
		return p, nil
	}
	for part := range strings.SplitSeq(text, ".") {
		word, ok := parseWord(part)
		if !ok {
			return p, fmt.Errorf(`'%s': want \ only before *, #, a comma or another \`, problem.OneLine(text))
		}
		p.words = append(p.words, word)
	}
	if _, literal := p.literal(); !literal && len(text) > MostPattern {
		return p, fmt.Errorf("a pattern of %d bytes: want at most %d", len(text), MostPattern)
	}
	return p, nil
}

func parseWord(text string) (w patternWord, ok bool) {
	if text == "#" {
		return patternWord{any: true}, true
	}
	var literal strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '*':
			w.literals = append(w.literals, literal.String())
			for literal.Reset(); i+1 < len(text) && text[i+1] == '*'; { // ** is *
				i++
			}
		case c != '\\':
			literal.WriteByte(c)
		case i+1 < len(text) && strings.IndexByte(`*#,\`, text[i+1]) >= 0:
			i++
			literal.WriteByte(text[i])
		default:
			return w, false
		}
	}
	w.literals = append(w.literals, literal.String())
	return w, true
}

// EscapePattern returns the pattern that matches only this text, also as a value for ParseHeaders.
func EscapePattern(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `#`, `\#`, `,`, `\,`).Replace(text)
}

// String returns the pattern as it was entered.
func (p Pattern) String() string { return p.text }

// IsEmpty reports whether the pattern matches only the empty text.
func (p Pattern) IsEmpty() bool { return len(p.words) == 0 }

// literal returns the only text that the pattern matches, if it has no wildcard.
func (p Pattern) literal() (string, bool) {
	texts := make([]string, len(p.words))
	for i, w := range p.words {
		if w.any || len(w.literals) > 1 {
			return "", false
		}
		texts[i] = w.literals[0]
	}
	return strings.Join(texts, "."), true
}

// addTo adds the condition on a text. The expression of the text has the places %[1]s and so on for these values.
func (p Pattern) addTo(c *conditions, text string, values ...any) {
	place := fmt.Sprintf("%%[%d]s", len(values)+1)
	if literal, ok := p.literal(); ok {
		c.add(text+" = "+place+"::text", append(values, literal)...)
		return
	}
	words := p.ordered()
	if len(words) == 1 && words[0].any {
		c.add(text+" IS NOT NULL", values...)
		return
	}
	// The collation makes the result the same in every database. The empty text has no words, and an expression of one
	// word may match it.
	text = "(" + text + `) COLLATE pg_catalog."C"`
	c.add(text+" <> ''::text AND "+text+" ~ "+place+"::text", append(values, regexOf(words))...)
}

// ordered returns the words with one # after the * beside it: #.*.# is *.#. So no two # follow each other.
func (p Pattern) ordered() (words []patternWord) {
	pending := false
	for _, w := range p.words {
		switch {
		case w.any:
			pending = true
		case pending && !w.isOneWord():
			words = append(words, patternWord{any: true}, w)
			pending = false
		default:
			words = append(words, w)
		}
	}
	if pending {
		words = append(words, patternWord{any: true})
	}
	return words
}

// isOneWord reports whether the word is *.
func (w patternWord) isOneWord() bool {
	return len(w.literals) == 2 && w.literals[0]+w.literals[1] == ""
}

// regexOf returns the words as a regular expression of Postgres. It matches the whole text. Postgres needs no time that
// grows exponentially for any expression without back references.
func regexOf(words []patternWord) string {
	var b strings.Builder
	b.WriteByte('^')
	for i, w := range words {
		last := i == len(words)-1
		switch {
		case w.any && last:
			b.WriteString(`(?:\..*)?`)
			continue
		case w.any && i == 0:
			b.WriteString(`(?:.*\.)?`)
			continue
		case w.any:
			b.WriteString(`\.(?:.*\.)?`)
			continue
		case i > 0 && !words[i-1].any:
			b.WriteString(`\.`)
		}
		for j, literal := range w.literals {
			if j > 0 {
				b.WriteString(`[^.]*`)
			}
			b.WriteString(quotedRegex(literal))
		}
	}
	b.WriteByte('$')
	return b.String()
}

// quotedRegex puts a backslash before each character that has a meaning in an expression.
func quotedRegex(literal string) string {
	var b strings.Builder
	for i := range len(literal) {
		if strings.IndexByte(`\.^$*+?()[]{}|`, literal[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(literal[i])
	}
	return b.String()
}
