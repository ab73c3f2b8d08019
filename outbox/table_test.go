package outbox_test

import (
	"strings"
	"testing"
	"unicode"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// hostileNames are names that end a line, a comment or a quote, or that a terminal does not show as they are.
func hostileNames() []string {
	return []string{
		"a\n; DROP TABLE x; --", "a\r\\! touch /tmp/x", "a'--", `a"b`, "a$$b", "a\u202eb", `a\b`, "a\\\n\"'", "\x1b[2Ka", "a\u0085b",
		"a\U000e0001b", "é" + strings.Repeat("ü", 30), "\u00a0", "%s%d", ";", "--", "/*", "U&", " ",
	}
}

func TestQuotedNamesAreOneLineAndMeanTheSame(t *testing.T) {
	for _, name := range hostileNames() {
		table := outbox.Table{Schema: name, Name: "x" + name}
		for _, text := range []string{outbox.QuoteIdentifier(name), outbox.QuoteLiteral(name), table.String(), table.Printed(), outbox.Identifier(name)} {
			if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q has characters that are not printable", text)
			}
		}
		for _, text := range []string{table.String(), table.Printed(), table.SQL()} {
			if got, err := outbox.ParseName(text); err != nil || got != table {
				t.Errorf("%q was parsed as %q, %v", text, got, err)
			}
		}
	}
	for _, text := range []string{`U&"a\00"`, `U&"a\zzzz"`, `U&"a\+00000"`, `U&"a`, `U&"\0000"`, `U&"a\d800"`} {
		if got, err := outbox.ParseName(text); err == nil {
			t.Errorf("%s was parsed as %q", text, got)
		}
	}
}
