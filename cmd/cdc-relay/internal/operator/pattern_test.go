package operator

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// matching returns which of the texts the SQL of a pattern selects.
func matching(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, conn *pgx.Conn, p Pattern, texts []string,
) (selected []bool) {
	t.Helper()
	c := conditions{args: []any{texts}}
	p.addTo(&c, "k.text")
	sql := `SELECT ` + c.String() + ` FROM unnest($1::text[]) WITH ORDINALITY k(text, nth) ORDER BY nth`
	rows, err := conn.Query(context.Background(), sql, c.args...)
	if err == nil {
		selected, err = pgx.CollectRows(rows, pgx.RowTo[bool])
	}
	if err != nil {
		t.Fatalf("%q: %v\n%s\n%q", p.text, err, sql, c.args[1:])
	}
	return selected
}

// binds is the meaning of a pattern, word by word. An empty text has no words, as for RabbitMQ.
func binds(pattern, key string) bool {
	split := func(text string) []string {
		if text == "" {
			return nil
		}
		return strings.Split(text, ".")
	}
	words := split(key)
	// reached[i]: the pattern so far can match the first i words.
	reached := make([]bool, len(words)+1)
	reached[0] = true
	for _, p := range split(pattern) {
		next := make([]bool, len(words)+1)
		for i := range reached {
			switch {
			case p == "#":
				next[i] = reached[i] || i > 0 && next[i-1]
			case i > 0:
				next[i] = reached[i-1] && wordBinds(p, words[i-1])
			}
		}
		reached = next
	}
	return reached[len(words)]
}

// wordBinds compares one word, from the first character on.
func wordBinds(pattern, word string) bool {
	switch {
	case pattern == "":
		return word == ""
	case pattern[0] == '*':
		return wordBinds(pattern[1:], word) || word != "" && wordBinds(pattern, word[1:])
	case pattern[0] == '\\':
		pattern = pattern[1:]
	}
	return word != "" && pattern[0] == word[0] && wordBinds(pattern[1:], word[1:])
}

func TestPatternsSelectAsABindingDoes(t *testing.T) {
	conn := tabletest.Connect(t, services.Database(t))
	// Parts are short, so that texts match often. Most have a meaning in an expression, in LIKE or in a pattern.
	part := rapid.SampledFrom([]string{
		"", "", ".", ".", ".", "a", "a", "b", "é", "日本", "%", "_", "?", "+", "(", ")", "[", "]", "{1}", "|", "^", "$", "\n",
		"***=", "(?i)", "A", " ", "-", "0", strings.Repeat("k", 255),
	})
	literal := rapid.OneOf(part, rapid.SampledFrom([]string{"*", "#", `\`}))
	wild := rapid.OneOf(part, rapid.SampledFrom([]string{"*", "#", ".#.", ".*.", "#.", "*.", `\*`, `\#`, `\\`}))
	rapid.Check(t, func(t *rapid.T) {
		pattern := strings.Join(rapid.SliceOfN(wild, 0, 8).Draw(t, "pattern"), "")
		p, err := ParsePattern(pattern)
		if err != nil {
			if len(pattern) <= MostPattern {
				t.Fatalf("%q: %v", pattern, err)
			}
			return
		}
		var keys []string
		for _, parts := range rapid.SliceOfN(rapid.SliceOfN(literal, 0, 8), 20, 40).Draw(t, "keys") {
			keys = append(keys, strings.Join(parts, ""))
		}
		for _, filled := range rapid.SliceOfN(part, 4, 4).Draw(t, "filled") { // these often match
			keys = append(keys, strings.NewReplacer(`\*`, "*", `\#`, "#", `\\`, `\`, "*", filled, "#", filled).Replace(pattern))
		}
		for i, selected := range matching(t, conn, p, keys) {
			if selected != binds(pattern, keys[i]) {
				t.Errorf("%q selects %q: %v", pattern, keys[i], selected)
			}
		}
		only, err := ParsePattern(EscapePattern(keys[0]))
		if err != nil {
			t.Fatalf("%q: %v", keys[0], err)
		}
		for i, selected := range matching(t, conn, only, keys) {
			if selected != (keys[i] == keys[0]) {
				t.Errorf("the escaped %q selects %q: %v", keys[0], keys[i], selected)
			}
		}
	})
}

// An error names the pattern, and a mistake is not a pattern that matches something else.
func TestPatternsWithMistakesAreRejected(t *testing.T) {
	for _, text := range []string{`\`, `a\`, `a\.b`, `\a`, `a.\`, `\\\`, `*\`} {
		if p, err := ParsePattern(text); err == nil || !strings.Contains(err.Error(), "'"+text+"': want") {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	}
	if _, err := ParsePattern("#." + strings.Repeat("x", MostPattern)); err == nil {
		t.Error("a long pattern is accepted")
	}
	if _, err := ParsePattern(strings.Repeat("x", 1<<20)); err != nil {
		t.Errorf("a long text without wildcards: %v", err)
	}
}

// The longest patterns that make the most of each kind of state, with texts that nearly match.
func TestHostilePatternsTakeLittleTime(t *testing.T) {
	conn := tabletest.Connect(t, services.Database(t))
	if _, err := conn.Exec(t.Context(), `SET statement_timeout = '30s'`); err != nil {
		t.Fatal(err)
	}
	fill := func(unit string) string { return strings.Repeat(unit, MostPattern/len(unit)-4) }
	for _, pattern := range []string{
		"#." + fill("a.#.") + "b", "#." + fill("*.") + "b", "#.a." + fill("*.") + "b", fill("*a"), fill("*a.#."), "#." + fill("*a*.#.") + "b",
		fill("#.*.") + "b", fill("a*b*.#."), fill("é.#."), fill("%.#."),
	} {
		p, err := ParsePattern(pattern)
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, unit := range []string{"a.", "ab.", "aa", ".", "a.b.", "é.", "x.a."} {
			keys = append(keys, strings.Repeat(unit, 4000/len(unit)))
		}
		for range 4 {
			keys = append(keys, keys...)
		}
		began := time.Now()
		matching(t, conn, p, keys)
		t.Logf("%.20q: %s", pattern, time.Since(began))
	}
}
