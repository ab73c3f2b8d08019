package outbox

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Table names an outbox table. Both parts are as in the catalog, without quotes.
type Table struct {
	Schema string
	Name   string
}

// ParseTable parses the name of an outbox table like ParseName. It also checks that the name of the dead-letter table
// fits.
func ParseTable(s string) (Table, error) {
	t, err := ParseName(s)
	if longest := 63 - len(deadLetterSuffix); err == nil && len(t.Name) > longest {
		return Table{}, fmt.Errorf(
			"table name %q: %q is longer than %d bytes, and the dead-letter table is named after it",
			s, t.Name, longest)
	}
	return t, err
}

// ParseName parses the name of a table as in SQL: name or schema.name, with double quotes for capitals, dots or spaces.
// The default schema is public. Unquoted parts become lower case, as in Postgres.
func ParseName(s string) (Table, error) {
	var parts []string
	for rest := s; ; {
		part, after, err := parseIdentifier(rest)
		if err != nil {
			return Table{}, fmt.Errorf("table name %q: %w", s, err)
		}
		parts = append(parts, part)
		if after == "" {
			break
		}
		if after[0] != '.' {
			return Table{}, fmt.Errorf(
				"table name %q: unexpected %q (put a name with special characters in double quotes)", s, after)
		}
		rest = after[1:]
	}
	if len(parts) > 2 {
		return Table{}, fmt.Errorf("table name %q: want name or schema.name", s)
	}
	name := parts[len(parts)-1]
	if len(parts) == 1 {
		return Table{Schema: "public", Name: name}, nil
	}
	return Table{Schema: parts[0], Name: name}, nil
}

const deadLetterSuffix = "_dead_letter"

func parseIdentifier(s string) (name, rest string, err error) {
	if s == "" {
		return "", "", fmt.Errorf("a name is empty")
	}
	if escapes, found := strings.CutPrefix(s, `U&`); found && strings.HasPrefix(escapes, `"`) {
		return parseEscaped(escapes)
	}
	if s[0] == '"' {
		name, rest, err = parseQuoted(s)
		return name, rest, cmp.Or(err, checkIdentifier(name))
	}
	end := strings.IndexFunc(s, func(r rune) bool {
		return r != '_' && r != '$' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r < 0x80
	})
	if end < 0 {
		end = len(s)
	}
	name, rest = strings.ToLower(s[:end]), s[end:]
	return name, rest, checkIdentifier(name)
}

// parseQuoted parses a name that begins with a double quote.
func parseQuoted(s string) (name, rest string, err error) {
	for i := 1; i < len(s); i++ {
		if s[i] != '"' {
			continue
		}
		if i+1 < len(s) && s[i+1] == '"' {
			i++
			continue
		}
		return strings.ReplaceAll(s[1:i], `""`, `"`), s[i+1:], nil
	}
	return "", "", fmt.Errorf("a double quote is not closed")
}

// parseEscaped parses a quoted name after U&, as QuoteIdentifier writes it.
func parseEscaped(s string) (name, rest string, err error) {
	raw, rest, err := parseQuoted(s)
	if err != nil {
		return "", "", err
	}
	var b strings.Builder
	for raw != "" {
		before, after, found := strings.Cut(raw, `\`)
		b.WriteString(before)
		if raw = after; !found {
			break
		}
		digits := 4
		if after, long := strings.CutPrefix(raw, "+"); long {
			raw, digits = after, 6
		}
		if strings.HasPrefix(raw, `\`) && digits == 4 {
			b.WriteByte('\\')
			raw = raw[1:]
			continue
		}
		code, err := strconv.ParseInt(raw[:min(digits, len(raw))], 16, 32)
		if err != nil || len(raw) < digits || !utf8.ValidRune(rune(code)) {
			return "", "", fmt.Errorf("%q has an escape that is not \\XXXX or \\+XXXXXX", s)
		}
		b.WriteRune(rune(code))
		raw = raw[digits:]
	}
	return b.String(), rest, checkIdentifier(b.String())
}

// checkIdentifier: NAMEDATALEN is 64, including the zero byte.
func checkIdentifier(name string) error {
	const longest = 63
	switch {
	case name == "":
		return fmt.Errorf("a name is empty")
	case len(name) > longest:
		return fmt.Errorf("%q is longer than %d bytes", name, longest)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("a name contains a zero byte")
	}
	return nil
}

// QuoteIdentifier quotes a name for SQL. The result is one line that a terminal shows as it is: characters that are not
// printable become escapes, U&"a\000ab". A cast to regclass does not understand them: see Table.SQL.
func QuoteIdentifier(name string) string {
	quoted := strings.ReplaceAll(name, `"`, `""`)
	if printable(name) {
		return `"` + quoted + `"`
	}
	return `U&"` + escaped(strings.ReplaceAll(quoted, `\`, `\\`), `\%04x`, `\+%06x`) + `"`
}

// QuoteLiteral quotes a string for SQL, with any standard_conforming_strings. The result is one line, like that of
// QuoteIdentifier. The grammar of replication commands does not understand its escapes.
func QuoteLiteral(s string) string {
	quoted := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) || !printable(s) {
		return "E" + escaped(strings.ReplaceAll(quoted, `\`, `\\`), `\u%04x`, `\U%08x`)
	}
	return quoted
}

// printable: text that is not UTF-8 has no escapes, and the server rejects it.
func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) || !utf8.ValidString(s)
}

// escaped replaces the characters that are not printable, with the format for short or for long code points.
func escaped(s, short, long string) string {
	if printable(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&b, short, r)
		default:
			fmt.Fprintf(&b, long, r)
		}
	}
	return b.String()
}

// SQL returns the name for statements that this program runs, and for casts to regclass, with both parts quoted. People
// get String or Printed.
func (t Table) SQL() string { return rawIdentifier(t.Schema) + "." + rawIdentifier(t.Name) }

func rawIdentifier(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// Literal returns the name as a string for a cast to regclass, on one line.
func (t Table) Literal() string {
	if name := t.String(); !strings.Contains(name, `U&"`) {
		return QuoteLiteral(name)
	}
	return QuoteLiteral(t.SQL())
}

// Printed returns the name for statements that people paste, with both parts quoted, on one line.
func (t Table) Printed() string { return QuoteIdentifier(t.Schema) + "." + QuoteIdentifier(t.Name) }

// String returns the name for people and for SQL that they paste, quoted only if necessary.
func (t Table) String() string { return Identifier(t.Schema) + "." + Identifier(t.Name) }

// DeadLetter returns the name of the dead-letter table.
func (t Table) DeadLetter() Table { return Table{Schema: t.Schema, Name: t.Name + deadLetterSuffix} }

// Published returns the name of the history table, which exists only if a history is kept.
func (t Table) Published() Table { return Table{Schema: t.Schema, Name: t.Name + "_published"} }

// RotatePublished returns the name of the function that creates and drops the partitions of Published.
func (t Table) RotatePublished() Table { return Table{Schema: t.Schema, Name: t.Name + "_rotate"} }

// Identifier quotes a name for SQL only if that is necessary. Logs escape quotes, so SQL without them can be pasted
// from there.
func Identifier(name string) string {
	for i, r := range name {
		lower := r == '_' || (r >= 'a' && r <= 'z')
		if !lower && (i == 0 || r < '0' || r > '9') {
			return QuoteIdentifier(name)
		}
	}
	if name == "" || strings.Contains(reserved, " "+name+" ") {
		return QuoteIdentifier(name)
	}
	return name
}

// reserved are the keywords of Postgres 15 to 18 that cannot name a schema or a table.
const reserved = ` all analyse analyze and any array as asc asymmetric authorization binary both case cast check ` +
	`collate collation column concurrently constraint create cross current_catalog current_date ` +
	`current_role current_schema current_time current_timestamp current_user default deferrable desc ` +
	`distinct do else end except false fetch for foreign freeze from full grant group having ilike in ` +
	`initially inner intersect into is isnull join lateral leading left like limit localtime ` +
	`localtimestamp natural not notnull null offset on only or order outer overlaps placing primary ` +
	`references returning right select session_user similar some symmetric system_user table ` +
	`tablesample then to trailing true union unique user using variadic verbose when where window with `
