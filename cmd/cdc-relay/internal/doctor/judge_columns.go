package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// judgeColumns compares a table with its definition, and returns the missing columns.
func (j *databaseJudge) judgeColumns(c *chart, of outbox.Table, table tableFacts) (missing []migrations.Column) {
	wanted, err := migrations.Columns(j.o.Table, of)
	if err != nil {
		c.unknown("column", err)
		return nil
	}
	for _, want := range wanted {
		at := slices.IndexFunc(table.Columns, func(is columnFacts) bool { return is.Name == want.Name })
		if at < 0 {
			missing = append(missing, want)
			continue
		}
		j.judgeColumn(c, of, table.Columns[at], want)
	}
	for _, is := range table.Columns {
		known := slices.ContainsFunc(wanted, func(want migrations.Column) bool { return want.Name == is.Name })
		switch travels := known || j.travels(of, is); {
		case travels:
		case is.NotNull && !is.Filled:
			j.judgeExtraColumn(c, of, is)
		case of == j.o.Table && !is.Generated:
			j.judgeLostColumn(c, of, is)
		}
	}
	return missing
}

// travels reports whether the dead-letter table keeps a column of the application.
func (j *databaseJudge) travels(of outbox.Table, is columnFacts) bool {
	other := j.o.Table.DeadLetter()
	switch of {
	case j.o.Table.Published():
		return false
	case other:
		other = j.o.Table
	}
	return slices.ContainsFunc(j.f.tables.value.Tables[other.Name].Columns,
		func(c columnFacts) bool { return c.Name == is.Name && c.Type == is.Type })
}

func (j *databaseJudge) judgeLostColumn(c *chart, of outbox.Table, is columnFacts) {
	fix := j.giveDead(is)
	if fix == nil {
		return
	}
	c.warn("column", fix, "column %s of %s is not in %s with the same type: dead letters lose its value",
		is.Name, of, j.o.Table.DeadLetter().Name).about(of.String() + "." + is.Name)
}

// giveDead returns the fix that adds an outbox column to the dead-letter table.
func (j *databaseJudge) giveDead(is columnFacts) fix {
	dead := j.o.Table.DeadLetter()
	table, there := j.f.tables.value.Tables[dead.Name]
	if !there {
		return nil
	}
	column := quote(is.Name)
	fix := sql("ALTER TABLE %s ADD COLUMN %s %s", dead.Printed(), column, is.Type)
	if slices.ContainsFunc(table.Columns, func(c columnFacts) bool { return c.Name == is.Name }) {
		fix = sql("ALTER TABLE %s ALTER COLUMN %s TYPE %s USING %[2]s::text::%[3]s", dead.Printed(), column, is.Type)
	}
	return fix
}

func (j *databaseJudge) judgeColumn(c *chart, of outbox.Table, is columnFacts, want migrations.Column) {
	alter := func(action string) fix {
		return sql("ALTER TABLE %s ALTER COLUMN %s %s", of.Printed(), quote(is.Name), action)
	}
	what := fmt.Sprintf("column %s of %s", is.Name, of)
	about := of.String() + "." + is.Name
	switch {
	case is.Generated:
		c.wrong("column", alter("DROP EXPRESSION"),
			"%s is generated: it is not in the stream, and the relay cannot write it", what).about(about)
	case is.Type != want.Type && strings.HasPrefix(is.Type, "character varying") && want.Type == "text":
		c.warn("column", alter("TYPE text"),
			"%s is %s, and should be text: what is longer cannot be written", what, is.Type).about(about)
	case is.Type != want.Type:
		effect := "the relay cannot read such rows, or publishes a different value"
		if of == j.o.Table.Published() {
			effect = unmoved
		}
		c.wrong("column", retype(of, is, want),
			"%s is %s, and has to be %s: %s", what, is.Type, want.Type, effect).about(about)
	case want.NotNull && !is.NotNull && of == j.o.Table.Published(): // the relay fills it
	case want.NotNull && !is.NotNull:
		c.wrong("column", lines(fillNulls(of, want), alter("SET NOT NULL")),
			"%s may be null: the relay cannot read a row without it", what).about(about)
	case is.NotNull && !want.NotNull:
		c.wrong("column", alter("DROP NOT NULL"), "%s is NOT NULL: %s", what, notNullEffect(j.o.Table, of)).about(about)
	case want.Default != "" && !is.Filled && of == j.o.Table:
		c.warn("column", lines(withDefault(alter(setDefault(want)), want), continueIDs(of, want)),
			"%s has no default: an INSERT that leaves it out fails", what).about(about)
	case of == j.o.Table && is.Default != "":
		j.judgeDefault(c, is, want)
	}
}

// defaultEffect says what an unexpected default does to the rows of an INSERT that leaves the column out.
type defaultEffect struct {
	same, other Level // if all rows get the same value, and otherwise
	says        string
}

// defaultEffects are by column. A default of another column does what its owner wants.
func defaultEffects() map[string]defaultEffect {
	const bodies = "a row with the other payload column has two bodies and becomes a dead letter"
	return map[string]defaultEffect{
		"message_id": {Problem, OK, "all messages have the same ID, and consumers drop them as duplicates"},
		"created_at": {Warning, OK, "timestamp and age of messages are wrong"},
		"attempts": {
			Problem, Problem,
			"rejections that never happened are counted, and messages become dead letters too soon",
		},
		"schema_version": {Problem, Problem, "rows of a newer version stay in the table"},
		"available_at":   {Problem, Warning, "no message streams; each waits until that time"},
		"expires_at": {
			Problem, Warning,
			"messages without a time of their own expire then and are not published",
		},
		"ordering_key":       {Warning, Warning, "messages without a key of their own wait for one another"},
		"coalesce_key":       {Problem, Warning, "of the waiting messages with that key, only the newest is published"},
		"possible_duplicate": {Warning, Warning, "new messages carry x-possible-duplicate"},
		"payload":            {Problem, Problem, bodies},
		"payload_bytes":      {Problem, Problem, bodies},
	}
}

// limitEffect is the effect of a default of max_attempts.
func limitEffect(value string) defaultEffect {
	switch {
	case value == "0":
		return defaultEffect{
			OK, OK, "rejected messages are retried without a limit, and an ordering key waits meanwhile",
		}
	case strings.HasPrefix(value, "-"):
		return defaultEffect{Problem, Problem, "a limit must not be negative, and messages become dead letters"}
	}
	return defaultEffect{}
}

func (j *databaseJudge) judgeDefault(c *chart, is columnFacts, want migrations.Column) {
	value, constant := constantOf(is.Default)
	current := slices.Contains(
		[]string{"now()", "CURRENT_TIMESTAMP", "transaction_timestamp()", "statement_timestamp()", "clock_timestamp()"},
		is.Default)
	effect := defaultEffects()[is.Name]
	if is.Name == "max_attempts" {
		effect = limitEffect(value)
	}
	level := effect.other
	if constant || current && is.Name == "expires_at" {
		level = effect.same
	}
	if level == "" || constant && value == want.Default || value == "false" && is.Name == "possible_duplicate" {
		level, effect.says = OK, ""
	}
	what := fmt.Sprintf("column %s of %s has the default %s", is.Name, j.o.Table, is.Default)
	if level == OK && effect.says != "" {
		what += ": " + effect.says
	}
	about, fix := j.o.Table.String()+"."+is.Name, "DROP DEFAULT"
	switch {
	case level == OK && want.Default == "":
		c.ok("column", "%s", what).about(about)
		return
	case level == OK:
		return
	case want.Default != "":
		fix = setDefault(want)
	}
	steps := sql("ALTER TABLE %s ALTER COLUMN %s %s", j.o.Table.Printed(), quote(is.Name), fix)
	if want.Default != "" {
		steps = withDefault(steps, want)
	}
	c.add(level, "column", steps, "%s: %s", what, effect.says).about(about)
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

// fillNulls gives the default to rows that have none; nil if there is no default.
func fillNulls(of outbox.Table, want migrations.Column) fix {
	if want.Default == "" || strings.HasPrefix(want.Default, "GENERATED") {
		return nil
	}
	return sql("UPDATE %s SET %s = %s WHERE %[2]s IS NULL", of.Printed(), quote(want.Name), want.Default)
}

// notNullEffect says what an unexpected NOT NULL breaks.
func notNullEffect(table, of outbox.Table) string {
	switch of {
	case table.Published():
		return unmoved
	case table:
		return "an INSERT that leaves it out fails, and dead letters cannot be requeued"
	}
	return "the relay cannot move a message there, and retries without end"
}

// withDefault: --fix may set a default, which changes no row. It makes no identity.
func withDefault(alter fix, want migrations.Column) fix {
	if strings.HasPrefix(want.Default, "GENERATED") {
		return alter
	}
	return alter.safe()
}

func setDefault(want migrations.Column) string {
	if strings.HasPrefix(want.Default, "GENERATED") {
		return "ADD " + want.Default
	}
	return "SET DEFAULT " + want.Default
}

// continueIDs makes a new sequence continue after the existing rows.
func continueIDs(of outbox.Table, want migrations.Column) fix {
	if !strings.HasPrefix(want.Default, "GENERATED") {
		return nil
	}
	return sql("SELECT pg_catalog.setval(pg_catalog.pg_get_serial_sequence(%s, %s), "+
		"(SELECT pg_catalog.max(id) FROM %s))",
		outbox.QuoteLiteral(of.SQL()), outbox.QuoteLiteral(want.Name), of.Printed())
}

// retype converts the values. The old default has the old type, so it is set again.
func retype(of outbox.Table, is columnFacts, want migrations.Column) fix {
	column := quote(is.Name)
	actions := []string{fmt.Sprintf("ALTER COLUMN %s TYPE %s USING %[1]s::text::%[2]s", column, want.Type)}
	if is.Filled && !strings.HasPrefix(want.Default, "GENERATED") {
		actions = slices.Insert(actions, 0, fmt.Sprintf("ALTER COLUMN %s DROP DEFAULT", column))
	}
	if want.Default != "" && !strings.HasPrefix(want.Default, "GENERATED") {
		actions = append(actions, fmt.Sprintf("ALTER COLUMN %s SET DEFAULT %s", column, want.Default))
	}
	return sql("ALTER TABLE %s %s",
		of.Printed(), strings.Join(actions, ", ")).noted("rewrites the table and locks it meanwhile")
}

func (j *databaseJudge) judgeExtraColumn(c *chart, of outbox.Table, is columnFacts) {
	level, fix := Problem, sql("ALTER TABLE %s ALTER COLUMN %s DROP NOT NULL", of.Printed(), quote(is.Name))
	if of == j.o.Table {
		level, fix = Warning, lines(fix, j.giveDead(is))
	}
	c.add(level, "column", fix, "column %s of %s is not the relay's, and NOT NULL without a default: %s",
		is.Name, of, notNullEffect(j.o.Table, of)).about(of.String() + "." + is.Name)
}

func columnNames(columns []migrations.Column) string {
	var names []string
	for _, c := range columns {
		names = append(names, c.Name)
	}
	return strings.Join(names, ", ")
}

func (j *databaseJudge) judgeTimes(c *chart) {
	if j.f.times.err != nil {
		return // another check reports why it cannot be read
	}
	if f := j.f.times.value; f.Newer > 0 {
		newer := remark("-- run relays that know schema_version %d; or, if it is a mistake of the application:",
			f.NewestVersion)
		update := sql("UPDATE %s SET schema_version = %d WHERE schema_version > %[2]d",
			j.o.Table.Printed(), outbox.SchemaVersion)
		c.warn("schema_version", lines(newer, update),
			"%s of those examined have a schema_version above %d, up to %d: this relay leaves them in the table",
			counted(f.Newer, "row", "rows"), outbox.SchemaVersion, f.NewestVersion)
	}
	if n := j.f.times.value.Expired; n > 0 {
		update := sql("UPDATE %s SET expires_at = NULL WHERE expires_at <= now()", j.o.Table.Printed())
		c.warn("expires_at", update.noted("publishes them nevertheless"),
			"%s of those examined have expired: the relay does not publish them (--on-expired)",
			counted(n, "row", "rows"))
	}
	if j.f.times.value.Rows == 0 {
		return
	}
	c.warn("created_at", lines(
		sql("UPDATE %s SET created_at = now() WHERE created_at > now() + interval '5 minutes'", j.o.Table.Printed()),
		remark("-- and leave created_at out of the INSERT: its default is the clock of Postgres")),
		"%s of those examined were created in the future, up to %s: "+
			"while no relay streams they wait until then, and their age is wrong",
		counted(j.f.times.value.Rows, "row", "rows"), j.f.times.value.Latest)
}
