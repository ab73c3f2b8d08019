package adopt

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// columns are the columns of the outbox that Request.Set accepts.
const columns = "message_id, exchange, routing_key, ordering_key, payload, headers, properties, created_at, " +
	"available_at, expires_at, coalesce_key, attempts, max_attempts, redacted_payload"

const propertyNames = "content_type, content_encoding, correlation_id, reply_to, type, user_id, app_id, priority, " +
	"delivery_mode, expiration"

// CheckSet reports a mistake of form in one of Request.Set.
func CheckSet(text string) error {
	if name, _, found := strings.Cut(text, "="); !found || strings.TrimSpace(name) == "" {
		return fmt.Errorf("%q: want COLUMN OF THE OUTBOX=EXPRESSION", text)
	}
	return nil
}

// conversion converts a row of the source into a row of the outbox.
type conversion struct {
	source *source
	lines  lines
	// body is the variable for the payload: payload, payload_bytes, or body for one that may not be JSON.
	body string
}

// convert merges the expressions of a layout and given ones. Postgres checks them, and runs none.
func (s *source) convert(ctx context.Context, db database, layout string, given []string) (*conversion, error) {
	c := &conversion{source: s, lines: layoutOf(layout)}
	for _, text := range given {
		name, expression, _ := strings.Cut(text, "=")
		if err := c.set(line{strings.TrimSpace(name), expression}); err != nil {
			return nil, err
		}
	}
	for _, needed := range []string{"routing_key", "payload"} {
		if c.lines.get(needed) == "" {
			return nil, problem.New("--set "+needed+"=EXPRESSION",
				"nothing says what becomes the %s of a message", needed)
		}
	}
	return c, pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { // an error does not end the transaction around it
		for _, l := range c.expressions() {
			if err := c.check(ctx, tx, l); err != nil {
				return &problem.Problem{
					What: fmt.Sprintf("--set %s on table %s", l.name, s.table),
					Fix: fmt.Sprintf("--set %s=EXPRESSION on its columns: %s; or --set %[1]s= for none; "+
						"write types and functions with their schema", l.name, s.names()),
					Err: err,
				}
			}
		}
		return nil
	})
}

// set sets, replaces or, with an empty text, removes an expression.
func (c *conversion) set(l line) error {
	name, entry, _ := strings.Cut(l.name, ".")
	switch {
	case slices.Contains(strings.Split(columns, ", "), l.name), name == "headers" && entry != "":
	case name == "properties" && slices.Contains(strings.Split(propertyNames, ", "), entry):
	case c.names().index(l.name) >= 0: // of the layout
	default:
		return problem.New("# want "+columns+", headers.NAME, or properties. and one of "+propertyNames,
			"--set %s: this is no column of the outbox to set", l.name)
	}
	if i := c.lines.index(l.name); i >= 0 {
		c.lines[i].text = l.text
	} else {
		c.lines = append(c.lines, l)
	}
	return nil
}

// cast returns the format of the SQL that converts a value for a column of the outbox; "": there is no such column.
func cast(column string) string {
	switch column {
	case "message_id", "exchange", "routing_key", "ordering_key", "coalesce_key", "error":
		return "%s::text"
	case "created_at", "available_at", "expires_at":
		return "%s::timestamptz"
	case "attempts", "max_attempts":
		return "%s::text::smallint"
	case "headers", "properties":
		return "nullif(%s::jsonb, 'null')"
	case "redacted_payload":
		return "%s::json"
	case "payload", "possible_duplicate":
		return "%s"
	}
	return ""
}

// value returns the SQL for a line whose value is called this.
func (c *conversion) value(l line, called string) string {
	switch name, entry, _ := strings.Cut(l.name, "."); {
	case l.name == "payload" && c.body == "payload":
		return called + "::json"
	case l.name == "payload" && c.body == "body":
		return called + "::text"
	case entry == "":
		return fmt.Sprintf(cast(name), called)
	case slices.Contains([]string{"properties.priority", "properties.delivery_mode", "properties.expiration"}, l.name):
		called += "::text::bigint"
	case name == "properties":
		called += "::text"
	}
	_, entry, _ := strings.Cut(l.name, ".")
	return fmt.Sprintf("CASE WHEN %s IS NULL THEN '{}' ELSE jsonb_build_object(%s, %[1]s) END",
		called, migrations.QuoteLiteral(entry))
}

// expressions returns the lines of columns of the outbox, and names those of the layout's own names.
func (c *conversion) expressions() lines {
	return slices.DeleteFunc(slices.Clone(c.lines), func(l line) bool {
		name, _, _ := strings.Cut(l.name, ".")
		return cast(name) == "" || strings.TrimSpace(l.text) == ""
	})
}

func (c *conversion) names() lines {
	others := []string{"usage", "table", "waiting", "only", "missing", "older", "then"}
	return slices.DeleteFunc(slices.Clone(c.lines), func(l line) bool {
		name, _, _ := strings.Cut(l.name, ".")
		return cast(name) != "" || slices.Contains(others, name)
	})
}

// check asks Postgres for the type of an expression.
func (c *conversion) check(ctx context.Context, tx pgx.Tx, l line) error {
	value := "e.c0"
	if l.name != "payload" {
		value = c.value(l, value)
	}
	from := c.from(lines{l}, "r", " FROM "+c.source.table.SQL()+" r", true)
	found, err := tx.Prepare(ctx, "", "SELECT "+value+from)
	if err != nil || l.name != "payload" {
		return err
	}
	c.body = "body"
	switch found.Fields[0].DataTypeOID {
	case pgtype.JSONOID, pgtype.JSONBOID:
		c.body = "payload"
	case pgtype.ByteaOID:
		c.body = "payload_bytes"
	}
	return nil
}

// from returns what gives the values e.c0, e.c1, … of these lines for a row: a record, or one of a table. It has only
// what they use, because Postgres may compute the rest, too. Without OFFSET, it would compute a name once for each use.
func (c *conversion) from(of lines, record, table string, waited bool) string {
	var values, names []string
	text := ""
	for i, l := range of {
		values, text = append(values, fmt.Sprintf("(%s) AS c%d", ended(l.text), i)), text+ended(l.text)
	}
	for _, l := range slices.Backward(c.names()) {
		if name := outbox.QuoteIdentifier(l.name); uses(text, l.name) {
			names = append(names, fmt.Sprintf("LATERAL (SELECT (%s) AS %s OFFSET 0) %[2]s", ended(l.text), name))
			text += ended(l.text)
		}
	}
	slices.Reverse(names)
	columns := []string{
		fmt.Sprint(waited, " AS waited"), migrations.QuoteLiteral(c.source.table.Name) + "::text AS from_table",
	}
	for _, column := range c.source.Columns {
		if name := outbox.QuoteIdentifier(column.Name); uses(text, column.Name) {
			columns = append(columns, record+"."+name+" AS "+name)
		}
	}
	for _, l := range c.lines {
		if name, is := strings.CutPrefix(l.name, "missing."); is && c.source.lacks(name) && uses(text, name) {
			columns = append(columns, strings.TrimSpace(l.text)+" AS "+outbox.QuoteIdentifier(name))
		}
	}
	row := "(SELECT " + strings.Join(columns, ", ") + table + ") r"
	value := "LATERAL (SELECT " + strings.Join(values, ", ") + ") e"
	return " FROM " + strings.Join(slices.Concat([]string{row}, names, []string{value}), ",\n ")
}

// uses reports whether an expression may use a column: it has its name as a word.
func uses(expression, name string) bool {
	word := regexp.QuoteMeta(strings.ReplaceAll(name, `"`, `""`))
	return regexp.MustCompile(`(?i)(?:^|[^\w$])` + word + `(?:[^\w$]|$)`).MatchString(expression)
}

// ended is an expression that also ends if it ends with a comment.
func ended(text string) string { return strings.TrimSpace(text) + "\n" }

// addressed are the columns that a row keeps whose other values cannot be converted.
func addressed(name string) bool {
	return slices.Contains([]string{"message_id", "exchange", "routing_key", "possible_duplicate"}, name)
}

// statement returns the SQL that sets the variables of the columns for which is returns true, from a record r.
func (c *conversion) statement(waited bool, is func(name string) bool) string {
	of := slices.DeleteFunc(c.expressions(), func(l line) bool { return !is(l.name) })
	if len(of) == 0 {
		return ""
	}
	var names, values []string
	for i, l := range of {
		name, entry, _ := strings.Cut(l.name, ".")
		value := c.value(l, fmt.Sprintf("e.c%d", i))
		if name == "payload" {
			name = c.body
		}
		switch at := slices.Index(names, name); {
		case at >= 0 && entry != "":
			values[at] = "coalesce(" + values[at] + ", '{}') || " + value
		case at >= 0:
			values[at] = "coalesce(" + value + ", '{}') || " + values[at]
		default:
			names, values = append(names, name), append(values, value)
		}
	}
	return "SELECT " + strings.Join(values, ", ") + " INTO " + strings.Join(names, ", ") +
		c.from(of, "r", "", waited) + ";"
}

// field is a column of the row.
func field(name string) string { return "r." + outbox.QuoteIdentifier(name) }
