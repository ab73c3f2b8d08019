package doctor

import (
	"fmt"
	"slices"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// firing is a kind of statement that fires triggers, and what happens if a trigger suppresses its rows or fails.
type firing struct {
	events             int
	relays             bool // the relay executes it for every message
	suppressed, failed string
}

func (j *databaseJudge) firings(of outbox.Table) []firing {
	const stuck = "dead letters cannot be requeued or purged"
	switch of {
	case j.o.Table.DeadLetter():
		return []firing{
			{triggerInsert, true, "a dead letter that it suppresses is lost", "no message can become a dead letter"},
			{triggerDelete, false, stuck, stuck},
		}
	case j.o.Table.Published():
		return []firing{{triggerInsert, true, "published messages are not kept, or stay in the outbox", unmoved}}
	}
	const stay = "rows stay after they were published, and the relay "
	return []firing{
		{triggerDelete | triggerUpdate, true, stay + "sets them aside", stay + "sets them aside or stops publishing"},
		{
			triggerInsert, false,
			"messages of applications and requeued dead letters are lost", "no message can be inserted",
		},
	}
}

// judgeTriggers checks the triggers of a table, or of a partition of it.
func (j *databaseJudge) judgeTriggers(c *chart, of, on outbox.Table, triggers []triggerFacts) {
	for _, t := range triggers {
		fix := sql("ALTER TABLE %s DISABLE TRIGGER %s", on.Printed(), quote(t.Name)).
			noted("or have %s return the row", outbox.Identifier(t.Function))
		worst, effect := OK, ""
		for _, f := range j.firings(of) {
			if level, says := t.judge(f); level == Problem || worst == OK {
				worst, effect = level, says
			}
		}
		if worst != OK {
			c.add(worst, "triggers", fix, "trigger %s of %s %s", t.Name, on, effect).about(on.String())
		}
	}
}

// judge says what a trigger does to the rows of a statement. A trigger of an application is reported only if it
// suppresses rows.
func (t triggerFacts) judge(f firing) (level Level, says string) {
	if t.Type&f.events == 0 {
		return OK, ""
	}
	null := slices.Contains(t.Returns, "null")
	before := t.Type&triggerBefore != 0 && t.Type&triggerRow != 0
	for _, event := range triggerEvents() {
		switch {
		case t.Type&f.events&event.bit == 0:
		case t.Language == "plpgsql" && len(t.Returns) == 0 && t.Always:
			return Problem, fmt.Sprintf("runs for each %s and always fails: its function has no RETURN. So %s",
				event.name, f.failed)
		case before && t.suppresses(event):
			return Problem, fmt.Sprintf("runs before each %s and returns %s: %s",
				event.name, t.nullNames(event), f.suppressed)
		}
	}
	switch {
	case before && null && f.relays:
		return Problem, "runs before statements of the relay, and can return NULL: " + f.suppressed
	case before && null:
		return Warning, "can return NULL: then " + f.suppressed
	case f.relays:
		return Warning, "runs in statements of the relay. If it fails, " + f.failed
	}
	return OK, ""
}

type triggerEvent struct {
	name string
	bit  int
	null string // the row that is null for this event; "": none
}

func triggerEvents() []triggerEvent {
	return []triggerEvent{
		{"DELETE", triggerDelete, "new"},
		{"UPDATE", triggerUpdate, ""},
		{"INSERT", triggerInsert, "old"},
	}
}

// suppresses: each RETURN of the function returns null.
func (t triggerFacts) suppresses(event triggerEvent) bool {
	keeps := func(word string) bool { return word != "null" && word != event.null }
	return len(t.Returns) > 0 && !slices.ContainsFunc(t.Returns, keeps)
}

func (t triggerFacts) nullNames(event triggerEvent) string {
	switch {
	case !slices.Contains(t.Returns, "new") && !slices.Contains(t.Returns, "old"):
		return "NULL"
	case event.null == "new":
		return "NEW, which is null there"
	}
	return "OLD, which is null there"
}

// judgeRules: a rule on INSERT, UPDATE or DELETE rewrites the statements.
func (j *databaseJudge) judgeRules(c *chart, of outbox.Table, rules []string) {
	for _, rule := range rules {
		c.wrong("triggers", sql("ALTER TABLE %s DISABLE RULE %s", of.Printed(), quote(rule)),
			"rule %s rewrites statements on %s: messages may stay, or get lost", rule, of).about(of.String())
	}
}

// judgeReferences: the relay deletes every row, so a foreign key to the outbox is a problem.
func (j *databaseJudge) judgeReferences(c *chart, of, on outbox.Table, references []referenceFacts) {
	for _, r := range references {
		fix := sql("ALTER TABLE %s DROP CONSTRAINT %s", r.Table, quote(r.Name))
		says := fmt.Sprintf("foreign key %s of %s refers to %s", r.Name, r.Table, on)
		switch {
		case of == j.o.Table.Published():
			c.warn("references", fix, "%s: old days of the history cannot be dropped", says).about(on.String())
		case of != j.o.Table:
			c.warn("references", fix,
				"%s: dead letters cannot be purged or requeued, or change that table", says).about(on.String())
		case r.Action == "a" || r.Action == "r":
			c.wrong("references", fix,
				"%s: a row that is referred to is published, cannot be deleted, and is set aside",
				says).about(on.String())
		default:
			c.warn("references", fix, "%s: each message that is published changes rows there", says).about(on.String())
		}
	}
}

// judgeConstraints reports the constraints that can reject what the relay writes. Its migrations create none but the
// primary keys. Those of the other columns of the outbox reject the INSERT of an application, which learns of it.
func (j *databaseJudge) judgeConstraints(c *chart, of, on outbox.Table, constraints []constraintFacts) {
	written := []string{"attempts", "available_at", "last_error", "possible_duplicate"}
	for _, k := range constraints {
		has := func(name string) bool { return slices.Contains(k.Columns, name) }
		if k.Unique && has("id") && (of == j.o.Table || has("message_id") || has("published_at")) {
			continue // no two rows have the same
		}
		level, effect := Warning, "a message that violates it cannot be moved there, and its row is set aside"
		switch {
		case of == j.o.Table && !slices.ContainsFunc(written, has):
			continue
		case of == j.o.Table:
			effect = "the relay writes such columns, and a row that would violate it becomes a dead letter"
		case of == j.o.Table.Published():
			level, effect = Problem, "of messages that violate it, "+unmoved
		}
		name, fix := "constraint "+k.Name, sql("ALTER TABLE %s DROP CONSTRAINT %s", on.Printed(), quote(k.Name))
		if k.Index != (outbox.Table{}) {
			name, fix = "unique index "+k.Index.String(), sql("DROP INDEX %s", k.Index)
		}
		c.add(level, "constraints", fix, "%s of %s: %s", name, on, effect).about(on.String())
	}
}

// judgeLeaves checks the partitions of a table. Row-level security of a partition does not matter: the relay names the
// partitioned table.
func (j *databaseJudge) judgeLeaves(c *chart, of outbox.Table) {
	for _, leaf := range j.f.tables.value.Leaves {
		if leaf.Root != of.Name {
			continue
		}
		on := outbox.Table{Schema: leaf.Schema, Name: leaf.Name}
		j.judgePersistence(c, of, on, leaf.Persistence)
		j.judgeTriggers(c, of, on, leaf.Triggers)
		j.judgeReferences(c, of, on, leaf.References)
		j.judgeConstraints(c, of, on, leaf.Constraints)
	}
}

// judgePersistence reports an UNLOGGED table or partition.
func (j *databaseJudge) judgePersistence(c *chart, of, on outbox.Table, persistence string) {
	fix := sql("ALTER TABLE %s SET LOGGED", on.Printed()).noted("rewrites the table and locks it meanwhile")
	switch {
	case persistence != "u":
	case of == j.o.Table:
		c.wrong("table", fix,
			"table %s is UNLOGGED: its rows are not in the WAL, do not stream, and are lost in a crash",
			on).about(on.String())
	case of == j.o.Table.Published():
		c.warn("table", fix, "table %s is UNLOGGED: its published messages are lost in a crash", on).about(on.String())
	default:
		c.warn("table", fix, "table %s is UNLOGGED: its dead letters are lost in a crash", on).about(on.String())
	}
}
