package outbox

import (
	"fmt"
	"strings"
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
		return Table{}, fmt.Errorf("table name %q: %q is longer than %d bytes, and the dead-letter table is named after it", s, t.Name, longest)
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
			return Table{}, fmt.Errorf("table name %q: unexpected %q (put a name with special characters in double quotes)", s, after)
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

// Command returns a command of cdc-relay for this table, as a person types it. If the table has another name than
// usual, slot and publication usually have too.
func (t Table) Command(name string, flags ...string) string {
	command := strings.Join(append([]string{"cdc-relay", name}, flags...), " ")
	if t == (Table{Schema: "public", Name: "outbox"}) {
		return command
	}
	quoted := "'" + strings.ReplaceAll(t.String(), "'", `'\''`) + "'"
	return command + " --table " + quoted + "  # with the relay's own --slot and --publication"
}

const deadLetterSuffix = "_dead_letter"

func parseIdentifier(s string) (name, rest string, err error) {
	if s == "" {
		return "", "", fmt.Errorf("a name is empty")
	}
	if s[0] == '"' {
		for i := 1; i < len(s); i++ {
			if s[i] != '"' {
				continue
			}
			if i+1 < len(s) && s[i+1] == '"' {
				i++
				continue
			}
			name, rest = strings.ReplaceAll(s[1:i], `""`, `"`), s[i+1:]
			return name, rest, checkIdentifier(name)
		}
		return "", "", fmt.Errorf("a double quote is not closed")
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

// checkIdentifier: NAMEDATALEN is 64, including the zero byte.
func checkIdentifier(name string) error {
	const longest = 63
	switch {
	case name == "":
		return fmt.Errorf("a name is empty")
	case len(name) > longest:
		return fmt.Errorf("%q is longer than %d bytes", name, longest)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("a name holds a zero byte")
	}
	return nil
}

// QuoteIdentifier quotes a name for SQL, with any characters.
func QuoteIdentifier(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// QuoteLiteral quotes a string for SQL, with any standard_conforming_strings.
func QuoteLiteral(s string) string {
	quoted := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return "E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}

// SQL returns the name for statements, with both parts quoted.
func (t Table) SQL() string { return QuoteIdentifier(t.Schema) + "." + QuoteIdentifier(t.Name) }

// String returns the name for people and for SQL that they paste, quoted only if necessary.
func (t Table) String() string { return Identifier(t.Schema) + "." + Identifier(t.Name) }

// DeadLetter returns the name of the dead-letter table.
func (t Table) DeadLetter() Table { return Table{Schema: t.Schema, Name: t.Name + deadLetterSuffix} }

// Published returns the name of the history table, which exists only if a history is kept.
func (t Table) Published() Table { return Table{Schema: t.Schema, Name: t.Name + "_published"} }

// RotatePublished returns the name of the function that creates and drops the partitions of Published.
func (t Table) RotatePublished() Table { return Table{Schema: t.Schema, Name: t.Name + "_rotate"} }

// Identifier quotes a name for SQL only if that is necessary. Logs escape quotes, so SQL without them can be pasted from
// there.
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

// reserved are the keywords of Postgres 14 to 18 that cannot name a schema or a table.
const reserved = ` all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation ` +
	`column concurrently constraint create cross current_catalog current_date current_role current_schema current_time ` +
	`current_timestamp current_user default deferrable desc distinct do else end except false fetch for foreign freeze from full ` +
	`grant group having ilike in initially inner intersect into is isnull join lateral leading left like limit localtime ` +
	`localtimestamp natural not notnull null offset on only or order outer overlaps placing primary references returning right ` +
	`select session_user similar some symmetric system_user table tablesample then to trailing true union unique user using ` +
	`variadic verbose when where window with `
