package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// columnsSQL lists the columns of the relation t.
const columnsSQL = `(
  SELECT jsonb_agg(jsonb_build_object('name', a.attname, 'type', format_type(a.atttypid, a.atttypmod),
    'NotNull', a.attnotnull, 'filled', a.atthasdef OR a.attidentity <> '', 'generated', a.attgenerated <> '',
    'default', (SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d
                WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.attgenerated = '')))
  FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped)`

type columnFacts struct {
	Name, Type        string
	NotNull           bool
	Filled, Generated bool   // it has a default or is generated
	Default           string // the default expression; "": none, or it is generated
}

// judgeColumns compares a table with its definition, and returns the missing columns.
func (j *databaseJudge) judgeColumns(c chart, of outbox.Table, table tableFacts) (missing []migrations.Column) {
	wanted, err := migrations.Columns(j.o.Table, of)
	if c.unknown("column", err) {
		return nil
	}
	for _, want := range wanted {
		at := slices.IndexFunc(table.Columns, func(is columnFacts) bool { return is.Name == want.Name })
		if at < 0 {
			missing = append(missing, want)
			continue
		}
		j.judgeColumn(c.about(of.String()+"."+want.Name), of, table.Columns[at], want)
	}
	for _, is := range table.Columns {
		known := slices.ContainsFunc(wanted, func(want migrations.Column) bool { return want.Name == is.Name })
		if !known && !j.travels(of, is) {
			j.judgeExtraColumn(c.about(of.String()+"."+is.Name), of, is)
		}
	}
	return missing
}

// travels reports whether the dead-letter table keeps a column of the application.
func (j *databaseJudge) travels(of outbox.Table, is columnFacts) bool {
	other := j.o.Table.DeadLetter()
	if of == other {
		other = j.o.Table
	}
	same := func(c columnFacts) bool { return c.Name == is.Name && c.Type == is.Type }
	return of != j.o.Table.Published() && slices.ContainsFunc(j.tables.Tables[other.Name].Columns, same)
}

// judgeExtraColumn checks a column that is not the relay's and that does not travel.
func (j *databaseJudge) judgeExtraColumn(c chart, of outbox.Table, is columnFacts) {
	own := of == j.o.Table
	switch fix := alterColumn(of, is.Name, "DROP NOT NULL"); {
	case is.NotNull && !is.Filled && own:
		c.warn("column", lines(fix, j.giveDead(is)), extraColumn, is.Name, of, notNullEffect(j.o.Table, of))
	case is.NotNull && !is.Filled:
		c.wrong("column", fix, extraColumn, is.Name, of, notNullEffect(j.o.Table, of))
	case own && !is.Generated && j.giveDead(is) != nil:
		c.warn("column", j.giveDead(is),
			"column %s of %s is not in %s with the same type: dead letters lose its value",
			is.Name, of, j.o.Table.DeadLetter().Name)
	}
}

const extraColumn = "column %s of %s is not the relay's, and NOT NULL without a default: %s"

// giveDead returns the fix that adds an outbox column to the dead-letter table, if that exists.
func (j *databaseJudge) giveDead(is columnFacts) steps {
	dead := j.o.Table.DeadLetter()
	table, there := j.tables.Tables[dead.Name]
	has := func(c columnFacts) bool { return c.Name == is.Name }
	switch {
	case !there:
		return nil
	case slices.ContainsFunc(table.Columns, has):
		return sql("ALTER TABLE %s ALTER COLUMN %s TYPE %s USING %[2]s::text::%[3]s",
			dead.Printed(), quote(is.Name), is.Type)
	}
	return sql("ALTER TABLE %s ADD COLUMN %s %s", dead.Printed(), quote(is.Name), is.Type)
}

func (j *databaseJudge) judgeColumn(c chart, of outbox.Table, is columnFacts, want migrations.Column) {
	alter := func(action string) steps { return alterColumn(of, is.Name, action) }
	what := fmt.Sprintf("column %s of %s", is.Name, of)
	switch {
	case is.Generated:
		c.wrong("column", alter("DROP EXPRESSION"),
			"%s is generated: it is not in the stream, and the relay cannot write it", what)
	case is.Type != want.Type && strings.HasPrefix(is.Type, "character varying") && want.Type == "text":
		c.warn("column", alter("TYPE text"),
			"%s is %s, and should be text: what is longer cannot be written", what, is.Type)
	case is.Type != want.Type:
		effect := "the relay cannot read such rows, or publishes a different value"
		if of == j.o.Table.Published() {
			effect = unmoved
		}
		c.wrong("column", retype(of, is, want), "%s is %s, and has to be %s: %s", what, is.Type, want.Type, effect)
	case want.NotNull && !is.NotNull && of == j.o.Table.Published(): // the relay fills it
	case want.NotNull && !is.NotNull:
		fix := alter("SET NOT NULL")
		if want.Default != "" && !identity(want) {
			fill := sql("UPDATE %s SET %s = %s WHERE %[2]s IS NULL", of.Printed(), quote(want.Name), want.Default)
			fix = lines(fill, fix)
		}
		c.wrong("column", fix, "%s may be null: the relay cannot read a row without it", what)
	case is.NotNull && !want.NotNull:
		c.wrong("column", alter("DROP NOT NULL"), "%s is NOT NULL: %s", what, notNullEffect(j.o.Table, of))
	case want.Default != "" && !is.Filled && of == j.o.Table:
		c.warn("column", setDefault(of, want), "%s has no default: an INSERT that leaves it out fails", what)
	case of == j.o.Table && is.Default != "":
		j.judgeDefault(c, is, want)
	}
}

// defaultEffect says what an unexpected default does to the rows of an INSERT that leaves the column out.
type defaultEffect struct {
	same, other Level // if all rows get the same value, and otherwise
	says        string
}

// effectOf returns the effect by column. A default of another column does what its owner wants.
func effectOf(column, value string) defaultEffect {
	const bodies = "a row with the other payload column has two bodies and becomes a dead letter"
	const early = "rejections that never happened are counted, and messages become dead letters too soon"
	const expired = "messages without a time of their own expire then and are not published"
	const endless = "rejected messages are retried without a limit, and an ordering key waits meanwhile"
	switch {
	case column == "max_attempts" && value == "0":
		return defaultEffect{OK, OK, endless}
	case column == "max_attempts" && strings.HasPrefix(value, "-"):
		return defaultEffect{Problem, Problem, "a limit must not be negative, and messages become dead letters"}
	}
	return map[string]defaultEffect{
		"message_id":     {Problem, OK, "all messages have the same ID, and consumers drop them as duplicates"},
		"created_at":     {Warning, OK, "timestamp and age of messages are wrong"},
		"attempts":       {Problem, Problem, early},
		"schema_version": {Problem, Problem, "rows of a newer version stay in the table"},
		"available_at":   {Problem, Warning, "no message streams; each waits until that time"},
		"expires_at":     {Problem, Warning, expired},
		"ordering_key":   {Warning, Warning, "messages without a key of their own wait for one another"},
		"coalesce_key":   {Problem, Warning, "of the waiting messages with that key, only the newest is published"},

		"possible_duplicate": {Warning, Warning, "new messages carry x-possible-duplicate"},
		"payload":            {Problem, Problem, bodies},
		"payload_bytes":      {Problem, Problem, bodies},
	}[column]
}

func (j *databaseJudge) judgeDefault(c chart, is columnFacts, want migrations.Column) {
	value, constant := constantOf(is.Default)
	current := slices.Contains(
		[]string{"now()", "CURRENT_TIMESTAMP", "transaction_timestamp()", "statement_timestamp()", "clock_timestamp()"},
		is.Default)
	effect := effectOf(is.Name, value)
	level := effect.other
	if constant || current && is.Name == "expires_at" {
		level = effect.same
	}
	if level == "" || constant && value == want.Default || value == "false" && is.Name == "possible_duplicate" {
		level, effect.says = OK, ""
	}
	what := fmt.Sprintf("column %s of %s has the default %s", is.Name, j.o.Table, is.Default)
	if effect.says != "" {
		what += ": " + effect.says
	}
	switch {
	case level != OK:
		c.add(level, "column", setDefault(j.o.Table, want), "%s", what)
	case want.Default == "":
		c.ok("column", "%s", what)
	}
}

// constantOf returns the value of an expression that is a literal, as Postgres writes it: 9, (-1) or '2'::smallint.
func constantOf(expression string) (text string, constant bool) {
	const value = `\(?(-?[0-9.]+|true|false)\)?|'((?:[^']|'')*)'`
	const cast = `::[^(]+(\([0-9,]+\))?[^(]*`
	m := regexp.MustCompile(`^(?:` + value + `)(` + cast + `)?$`).FindStringSubmatch(expression)
	if m == nil {
		return "", false
	}
	return m[1] + m[2], true
}

// notNullEffect says what an unexpected NOT NULL breaks.
func notNullEffect(table, of outbox.Table) string {
	switch of {
	case table.Published():
		return unmoved
	case table:
		return "an INSERT that leaves it out fails, and dead letters cannot be resent"
	}
	return "the relay cannot move a message there, and retries without end"
}

// identity reports whether the column gets its values from a sequence of its own.
func identity(want migrations.Column) bool { return strings.HasPrefix(want.Default, "GENERATED") }

func alterColumn(of outbox.Table, name, action string) steps {
	return sql("ALTER TABLE %s ALTER COLUMN %s %s", of.Printed(), quote(name), action)
}

// setDefault gives a column its default. --fix may do that, as it changes no row, but makes no identity. A new sequence
// continues after the existing rows.
func setDefault(of outbox.Table, want migrations.Column) steps {
	alter := func(action string) steps { return alterColumn(of, want.Name, action) }
	switch {
	case want.Default == "":
		return alter("DROP DEFAULT")
	case identity(want):
		return lines(alter("ADD "+want.Default), sql("SELECT pg_catalog.setval("+
			"pg_catalog.pg_get_serial_sequence(%s, %s), (SELECT pg_catalog.max(id) FROM %s))",
			outbox.QuoteLiteral(of.SQL()), outbox.QuoteLiteral(want.Name), of.Printed()))
	}
	return alter("SET DEFAULT " + want.Default).safe()
}

// retype converts the values. The old default has the old type, so it is set again.
func retype(of outbox.Table, is columnFacts, want migrations.Column) steps {
	column := quote(is.Name)
	actions := []string{fmt.Sprintf("ALTER COLUMN %s TYPE %s USING %[1]s::text::%[2]s", column, want.Type)}
	if is.Filled && !identity(want) {
		actions = slices.Insert(actions, 0, fmt.Sprintf("ALTER COLUMN %s DROP DEFAULT", column))
	}
	if want.Default != "" && !identity(want) {
		actions = append(actions, fmt.Sprintf("ALTER COLUMN %s SET DEFAULT %s", column, want.Default))
	}
	return sql("ALTER TABLE %s %s",
		of.Printed(), strings.Join(actions, ", ")).noted("rewrites the table and locks it meanwhile")
}
