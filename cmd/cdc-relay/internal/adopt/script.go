package adopt

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
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

// render fills a template.
func (p *plan) render(name string, commit bool) (string, error) {
	s, c := p.source, p.conversion
	parsed, err := template.New("adopt").Funcs(template.FuncMap{
		// keyOf compares the primary key with that of a record.
		"keyOf": func(record string) string { return s.eachKey(" AND ", "s.%[1]s %[2]s "+record+".%[1]s") },
	}).Parse(templates)
	if err != nil {
		return "", fmt.Errorf("parse templates: %w", err)
	}
	var b strings.Builder
	literal := migrations.QuoteLiteral(s.table.SQL())
	relations := "= TG_RELID"
	switch {
	case name == "move":
		relations = fmt.Sprintf(
			"IN (SELECT %s::regclass::oid UNION SELECT t.relid::oid FROM pg_partition_tree(%[1]s) t)",
			literal)
	case s.Kind == "p":
		relations = "IN (" + literal + "::regclass::oid, TG_RELID)"
	}
	err = parsed.ExecuteTemplate(&b, name, map[string]any{
		"Outbox": p.request.Outbox.SQL(), "Source": s.table.SQL(), "View": p.request.View, "Sequences": p.sequences(),
		"Address": c.statement(name == "move", addressed),
		"Content": c.statement(name == "move", func(column string) bool { return !addressed(column) }),
		"Body":    c.body == "body", "Errors": c.lines.get("error") != "", "Then": c.lines.get("then"),
		"Namespace": migrations.QuoteLiteral(s.table.String() + "/"),
		"Waiting":   "(" + ended(p.waiting) + ")", "KeyColumns": s.keyColumns(), "Order": p.order(),
		"Moves": name == "move", "Commit": commit, "Only": p.request.only(),
		"Literal": literal, "Relations": relations,
		"Trusted": join([]string{s.Owner, p.request.Owner}, ", ", migrations.QuoteLiteral),
	})
	if err != nil {
		return "", fmt.Errorf("render %s: %w", name, err)
	}
	return dollarQuoted(b.String()), nil
}

func dollarQuoted(text string) string {
	quote := migrations.DollarQuote(text)
	return quote + text + quote
}

func (s *source) eachKey(separator, format string) string {
	return join(s.Key, separator, func(c keyColumn) string {
		return fmt.Sprintf(format, outbox.QuoteIdentifier(c.Name), c.Equals)
	})
}

func (s *source) keyColumns() string { return s.eachKey(", ", "s.%[1]s") }

// order is the order of insertion, if the table has a column for it.
func (p *plan) order() string {
	order := p.source.keyColumns()
	ordered := []string{"int2", "int4", "int8", "numeric", "timestamptz", "timestamp", "xid8"}
	for _, c := range p.source.Columns {
		if c.Name == p.source.Key[0].Name && slices.Contains(ordered, c.Type) {
			return order
		}
	}
	if created := p.conversion.lines.index("created_at"); created >= 0 && p.conversion.lines.get("created_at") != "" {
		from := p.conversion.from(p.conversion.lines[created:created+1], "s", "", true)
		return "(SELECT e.c0" + from + "), " + order
	}
	return order
}

// sequences are the sequences of the identity columns, for a view.
func (p *plan) sequences() (all []struct{ Column, Sequence string }) {
	for _, c := range p.source.Columns {
		if p.request.View && c.Sequence != "" {
			all = append(all, struct{ Column, Sequence string }{
				outbox.QuoteIdentifier(c.Name), migrations.QuoteLiteral(c.Sequence) + "::regclass",
			})
		}
	}
	return all
}

// statements are the two steps.
type statements struct {
	move  string   // moves waiting rows, in several transactions
	final []string // for one transaction, which attaches the table
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
	s.move = "DO " + s.move + ";\n"
	s.final = []string{
		lockTimeout, p.lock(), migrations.OwnersSQL(p.request.Outbox, p.request.From, p.request.Owner),
		before + fmt.Sprintf("CREATE OR REPLACE FUNCTION %s RETURNS trigger LANGUAGE plpgsql "+
			"SECURITY DEFINER SET %s SET enable_seqscan = off AS %s;", f, searchPath, function) + after,
		fmt.Sprintf("COMMENT ON FUNCTION %s IS %s;", f, migrations.QuoteLiteral(string(note))),
	}
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
END `, migrations.QuoteLiteral(table), triggerName, table, function)
	return []string{"DO " + dollarQuoted(text) + ";"}
}

// view replaces the table by a view with the same columns, defaults, owner and grants.
func (p *plan) view() []string {
	table := p.source.table
	names := join(p.source.Columns, ", ", func(c column) string { return outbox.QuoteIdentifier(c.Name) })
	var all []string
	for _, c := range p.source.Columns {
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
		fmt.Sprintf("CREATE VIEW %s AS SELECT %s FROM %s;", table.SQL(), names, setAside(table).SQL()),
		fmt.Sprintf("ALTER VIEW %s OWNER TO %s;", table.SQL(), outbox.QuoteIdentifier(p.source.Owner)),
	}, all...)
}

// setAside is the new name of a table that a view has replaced.
func setAside(table outbox.Table) outbox.Table {
	return outbox.Table{Schema: table.Schema, Name: shortened(table.Name + "_adopted")}
}
