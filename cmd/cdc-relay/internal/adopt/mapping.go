package adopt

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// part is a column of the source table, or a constant text.
type part struct {
	column  string
	quoted  bool // the name was in double quotes
	literal bool
	text    string
	found   column // what source.convert has found
}

// mapping assigns the concatenated parts to a column of the outbox. Without parts, the column keeps its default.
type mapping struct {
	target string
	parts  []part
}

// single returns the column if the value is exactly one column, else one without a name.
func (m mapping) single() column {
	if len(m.parts) == 1 {
		return m.parts[0].found
	}
	return column{}
}

// targets returns the columns that --map accepts. headers and properties also accept single entries: headers.NAME.
func targets() []string {
	return []string{
		"message_id", "exchange", "routing_key", "ordering_key", "payload", "headers", "properties",
		"created_at", "available_at", "expires_at", "coalesce_key", "attempts", "max_attempts", "redacted_payload",
	}
}

// The target prefixes for a pattern of Celery tasks. Celery's setting task_routes has both values.
const (
	taskRoutes   = "task_routes"
	taskPriority = "task_priority"
)

func propertyNames() []string {
	return []string{
		"content_type", "content_encoding", "correlation_id", "reply_to", "type", "user_id", "app_id",
		"priority", "delivery_mode", "expiration",
	}
}

// CheckMap reports a mistake in Request.Map.
func CheckMap(text string) error {
	_, err := parseMap(text)
	return err
}

// parseMap reads "routing_key=topic,exchange='events',ordering_key=kind||':'||key". Columns are written as in SQL.
func parseMap(text string) ([]mapping, error) {
	var all []mapping
	for rest := text; strings.TrimSpace(rest) != ""; {
		target, after, found := strings.Cut(rest, "=")
		target = strings.TrimSpace(target)
		if !found {
			return nil, fmt.Errorf("%q: want COLUMN OF THE OUTBOX=COLUMN OF THE TABLE", target)
		}
		if err := checkTarget(target); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(all, func(m mapping) bool { return m.target == target }) {
			return nil, fmt.Errorf("%s is set twice", target)
		}
		parts, next, err := parseParts(after)
		if err != nil {
			return nil, fmt.Errorf("%s=%s: %w", target, after, err)
		}
		all, rest = append(all, mapping{target: target, parts: parts}), next
	}
	return all, nil
}

func checkTarget(target string) error {
	name, entry, of := strings.Cut(target, ".")
	switch {
	case of && (name == "headers" || name == taskRoutes || name == taskPriority) && entry != "":
		return nil
	case of && name == "properties" && slices.Contains(propertyNames(), entry):
		return nil
	case of && name == "properties":
		return fmt.Errorf("%q: properties has no such entry, want one of %s",
			target, strings.Join(propertyNames(), ", "))
	case of || !slices.Contains(targets(), target):
		return fmt.Errorf("%q is no column of the outbox to map: want %s, headers.NAME or properties.NAME",
			target, strings.Join(targets(), ", "))
	}
	return nil
}

// parseParts reads up to the comma that ends the value.
func parseParts(text string) (parts []part, rest string, err error) {
	rest = strings.TrimSpace(text)
	if rest == "" || rest[0] == ',' {
		return nil, strings.TrimPrefix(rest, ","), nil
	}
	for {
		var p part
		if p, rest, err = parsePart(rest); err != nil {
			return nil, "", err
		}
		parts, rest = append(parts, p), strings.TrimSpace(rest)
		after, more := strings.CutPrefix(rest, "||")
		switch {
		case more:
			rest = strings.TrimSpace(after)
		case rest == "" || rest[0] == ',':
			return parts, strings.TrimPrefix(rest, ","), nil
		default:
			return nil, "", fmt.Errorf("unexpected %q (put a text in single quotes, "+
				"and a column with special characters in double quotes)", rest)
		}
	}
}

// partForm is a text or a name in quotes, which are doubled inside, or a name.
var partForm = regexp.MustCompile(`^(?:'((?:[^']|'')*)'|"((?:[^"]|"")*)"|[^,|='" \t\n]+)`)

func parsePart(text string) (p part, rest string, err error) {
	found := partForm.FindStringSubmatch(text)
	switch {
	case text == "":
		return p, "", errors.New("a column is missing")
	case found == nil && (text[0] == '\'' || text[0] == '"'):
		return p, "", errors.New("a quote is not closed")
	case found == nil:
		return p, "", fmt.Errorf("unexpected %q", text)
	case text[0] == '\'':
		p = part{literal: true, text: strings.ReplaceAll(found[1], "''", "'")}
	case text[0] == '"':
		p = part{column: strings.ReplaceAll(found[2], `""`, `"`), quoted: true}
	default:
		p = part{column: found[0]}
	}
	return p, text[len(found[0]):], nil
}

// merged returns the mappings of base. Those of over replace mappings with the same target.
func merged(base, over []mapping) []mapping {
	all := slices.DeleteFunc(slices.Clone(base), func(m mapping) bool {
		return slices.ContainsFunc(over, func(o mapping) bool { return o.target == m.target })
	})
	return append(all, over...)
}
