package adopt

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

//go:embed adopt.sql
var templates string

// triggerName is the same on every table, so no table can be adopted twice.
const triggerName = "cdc_relay_adopt"

// lockTimeout limits how long INSERTs of the application queue behind our request for a lock.
const lockTimeout = "SET LOCAL lock_timeout = '2s';"

// plan is one table to adopt, with all known facts.
type plan struct {
	request    Request
	source     *source
	conversion *conversion
	waiting    string // an SQL condition; "false" moves no row
	function   outbox.Table
}

// data is the input of the templates.
type data struct {
	*plan
	Commit bool
	// Moves: the rows waited in the table.
	Moves bool
}

func (d data) Layout() string            { return d.conversion.layout }
func (d data) Assignments() []assignment { return d.conversion.assignments }
func (d data) Body() string              { return d.conversion.body }
func (d data) Queue() string             { return d.conversion.queue }
func (d data) Outbox() string            { return d.request.Outbox.SQL() }
func (d data) Source() string            { return d.source.table.SQL() }
func (d data) Waiting() string           { return "(" + d.waiting + ")" }
func (d data) View() bool                { return d.request.View }
func (d data) TaskUUID() string          { return d.source.asUUID(`r."task_id"::text`) }
func (d data) EnvelopeUUID() string      { return d.source.asUUID("(envelope ->> 'uuid')") }

// MayBeSent is the condition for a row that its old relay may have published. The table of django-celery-outbox tells;
// of other tables, every row that waited may have been published, and no row that the trigger sees.
func (d data) MayBeSent() string {
	if d.conversion.layout == CeleryOutbox {
		return d.orElse("updated_at", `r."updated_at" IS NOT NULL`, strconv.FormatBool(d.Moves))
	}
	return strconv.FormatBool(d.Moves)
}

// KeyOf compares the primary key with that of a record.
func (d data) KeyOf(record string) string { return d.key(" AND ", `s.%[1]s %[2]s `+record+`.%[1]s`) }

// KeyColumns lists the primary key's columns.
func (d data) KeyColumns() string { return d.key(", ", "s.%[1]s") }

// Order is the order of insertion, if the table has a column for it.
func (d data) Order() string {
	order := d.KeyColumns()
	for _, c := range d.source.Columns {
		random := c.Name == d.source.Key[0].Name &&
			!slices.Contains([]string{"int2", "int4", "int8", "numeric", "timestamptz", "timestamp", "xid8"}, c.Type)
		for _, a := range d.conversion.assignments {
			name, cut := strings.CutSuffix(a.Expression, "::timestamptz")
			if random && cut && a.Variable == "created_at" {
				order = "s" + strings.TrimPrefix(name, "r") + ", " + order
			}
		}
	}
	return order
}

func (d data) key(separator, format string) string {
	words := make([]string, len(d.source.Key))
	for i, column := range d.source.Key {
		words[i] = fmt.Sprintf(format, outbox.QuoteIdentifier(column.Name), column.Equals)
	}
	return strings.Join(words, separator)
}

// Sequences are the sequences of the identity columns, for a view.
func (d data) Sequences() (all []struct{ Column, Sequence string }) {
	for _, c := range d.source.Columns {
		if d.request.View && c.Sequence != "" {
			all = append(all,
				struct{ Column, Sequence string }{outbox.QuoteIdentifier(c.Name), literal(c.Sequence) + "::regclass"})
		}
	}
	return all
}

// SchemaVersion, Retries, RetryAfter, Redacted, Args, Kwargs and Sentry are optional: some versions of
// django-celery-outbox lack these columns.
func (d data) SchemaVersion() string { return d.orElse("schema_version", `r."schema_version"`, "1") }

func (d data) Retries() string    { return d.orElse("retries", `r."retries"`, "0") }
func (d data) RetryAfter() string { return d.orElse("retry_after", `r."retry_after"`, "") }

func (d data) Redacted() bool {
	return d.source.has("redacted_args") && d.source.has("redacted_kwargs")
}
func (d data) Args() string   { return d.redacted("args") }
func (d data) Kwargs() string { return d.redacted("kwargs") }
func (d data) Sentry() string {
	return d.orElse("sentry_trace_id", `'sentry-trace', r."sentry_trace_id", 'baggage', r."sentry_baggage"`, "")
}

func (d data) redacted(name string) string {
	return d.orElse("redacted_"+name, fmt.Sprintf(`coalesce(r."redacted_%[1]s", r."%[1]s")`, name),
		fmt.Sprintf(`r."%s"`, name))
}

func (d data) orElse(column, there, missing string) string {
	if d.source.has(column) {
		return there
	}
	return missing
}

func (p *plan) render(name string, commit bool) (string, error) {
	parsed, err := template.New("adopt").Parse(templates)
	if err != nil {
		return "", fmt.Errorf("parse templates: %w", err)
	}
	var b strings.Builder
	if err := parsed.ExecuteTemplate(&b, name, data{p, commit, name == "move"}); err != nil {
		return "", fmt.Errorf("render %s: %w", name, err)
	}
	return dollarQuoted(b.String()), nil
}

// dollarQuoted picks a dollar quote that does not occur in the text.
func dollarQuoted(text string) string {
	quote := "$body$"
	for strings.Contains(text, quote) {
		quote = strings.TrimSuffix(quote, "$") + "_$"
	}
	return quote + text + quote
}

// statements are the three steps. Each runs on its own.
type statements struct {
	function string // creates the function
	move     string // moves waiting rows, in several transactions
	final    []string
}

func (p *plan) statements() (s statements, err error) {
	function, err := p.render("function", false)
	if err != nil {
		return s, err
	}
	if s.move, err = p.render("move", true); err != nil {
		return s, err
	}
	last, err := p.render("move", false)
	if err != nil {
		return s, err
	}
	note, err := json.Marshal(map[string]any{"adopts": p.note(function)})
	if err != nil {
		return s, fmt.Errorf("describe the function: %w", err)
	}
	f := p.function.SQL() + "()"
	before, after := migrations.ClaimSQL(p.request.Outbox, migrations.Function{Name: p.function})
	s.function = before + fmt.Sprintf("CREATE OR REPLACE FUNCTION %s RETURNS trigger LANGUAGE plpgsql "+
		"SECURITY DEFINER SET %s SET enable_seqscan = off AS %s;\n", f, searchPath, function) +
		after +
		fmt.Sprintf("COMMENT ON FUNCTION %s IS %s;\n", f, literal(string(note)))
	s.move = "DO " + s.move + ";\n"
	s.final = []string{lockTimeout, p.lock()}
	if p.waiting != "false" {
		s.final = append(s.final, "DO "+last+";")
	}
	s.final = append(s.final, p.attach(f)...)
	return s, nil
}

func (p *plan) lock() string {
	mode := "SHARE ROW EXCLUSIVE"
	if p.request.View {
		mode = "ACCESS EXCLUSIVE"
	}
	return fmt.Sprintf("LOCK TABLE %s IN %s MODE;", p.source.table.SQL(), mode)
}

// attach returns the statements that send new rows to the function.
func (p *plan) attach(function string) []string {
	table := p.source.table.SQL()
	if p.request.View {
		return append(p.view(), fmt.Sprintf("CREATE TRIGGER %s INSTEAD OF INSERT ON %s "+
			"FOR EACH ROW EXECUTE FUNCTION %s;", triggerName, table, function))
	}
	// Deferred: the row exists until COMMIT, so RETURNING, ON CONFLICT and a DELETE by the application work as before.
	text := fmt.Sprintf(`
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = %s::regclass AND tgname = '%s') THEN
        ALTER TABLE %s ENABLE TRIGGER %[2]s;
    ELSE
        CREATE CONSTRAINT TRIGGER %[2]s AFTER INSERT ON %[3]s
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION %[4]s;
    END IF;
END `, literal(table), triggerName, table, function)
	return []string{"DO " + dollarQuoted(text) + ";"}
}

// view replaces the table by a view with the same columns, defaults, owner and grants.
func (p *plan) view() []string {
	table := p.source.table
	var names, all []string
	for _, c := range p.source.Columns {
		names = append(names, outbox.QuoteIdentifier(c.Name))
		if c.Default != "" {
			all = append(all, fmt.Sprintf("ALTER VIEW %s ALTER COLUMN %s SET DEFAULT %s;",
				table.SQL(), outbox.QuoteIdentifier(c.Name), c.Default))
		}
	}
	for _, g := range p.source.Grants {
		option := ""
		if g.Option {
			option = " WITH GRANT OPTION"
		}
		all = append(all, fmt.Sprintf("GRANT %s ON %s TO %s%s;", g.Privilege, table.SQL(), g.Grantee, option))
	}
	return append([]string{
		fmt.Sprintf("ALTER TABLE %s RENAME TO %s;", table.SQL(), outbox.QuoteIdentifier(setAside(table).Name)),
		fmt.Sprintf("CREATE VIEW %s AS SELECT %s FROM %s;",
			table.SQL(), strings.Join(names, ", "), setAside(table).SQL()),
		fmt.Sprintf("ALTER VIEW %s OWNER TO %s;", table.SQL(), outbox.QuoteIdentifier(p.source.Owner)),
	}, all...)
}

// setAside is the new name of a table that a view has replaced.
func setAside(table outbox.Table) outbox.Table {
	return outbox.Table{Schema: table.Schema, Name: shortened(table.Name + "_adopted")}
}
