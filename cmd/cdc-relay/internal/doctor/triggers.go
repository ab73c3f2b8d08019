package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// triggersSQL lists the enabled triggers of the relation t. A partition's copy of its parent's trigger is left out.
const triggersSQL = `(
  SELECT jsonb_agg(jsonb_build_object('name', g.tgname, 'function', p.proname, 'type', g.tgtype,
    'language', l.lanname, 'always', g.tgqual IS NULL AND g.tgattr::text = '',
    'returns', (SELECT jsonb_agg(DISTINCT lower(word[1])) FROM regexp_matches(
                  regexp_replace(regexp_replace(p.prosrc, '--[^\n]*', '', 'g'), '/\*.*?\*/', '', 'g'),
                  '\mreturn\M\s*(\w+|\S)', 'gi') word)) ORDER BY g.tgname)
  FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid JOIN pg_language l ON l.oid = p.prolang
  WHERE g.tgrelid = t.oid AND NOT g.tgisinternal AND g.tgparentid = 0 AND g.tgenabled IN ('O', 'A'))`

// rulesSQL lists the rules that rewrite statements on the relation t.
const rulesSQL = `(SELECT jsonb_agg(r.rulename ORDER BY r.rulename) FROM pg_rewrite r
  WHERE r.ev_class = t.oid AND r.ev_type IN ('2', '3', '4') AND r.ev_enabled IN ('O', 'A'))`

// referencesSQL lists the foreign keys to the relation t.
const referencesSQL = `(
  SELECT jsonb_agg(jsonb_build_object('table', jsonb_build_object('schema', n.nspname, 'name', c.relname),
    'name', f.conname, 'action', f.confdeltype) ORDER BY f.conname)
  FROM pg_constraint f JOIN pg_class c ON c.oid = f.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE f.confrelid = t.oid AND f.contype = 'f' AND f.conparentid = 0)`

// constraintsSQL lists what can reject a row of the relation t, with the columns that it reads. What a partition has
// from its parent is left out.
const constraintsSQL = `(SELECT jsonb_agg(to_jsonb(r) ORDER BY r.name, r.index) FROM (
  SELECT k.conname::text AS name, '{}'::jsonb AS index, k.contype IN ('p', 'u', 'x') AS "unique", (
    SELECT jsonb_agg(a.attname) FROM pg_attribute a
    WHERE a.attrelid = t.oid AND a.attnum = ANY (k.conkey)) AS columns
  FROM pg_constraint k WHERE k.conrelid = t.oid AND k.contype IN ('c', 'f', 'p', 'u', 'x')
    AND NOT (t.relispartition AND k.coninhcount > 0)
  UNION ALL SELECT '', jsonb_build_object('schema', n.nspname, 'name', c.relname), true, (
    SELECT jsonb_agg(a.attname) FROM pg_attribute a
    WHERE a.attrelid = t.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid AND NOT c.relispartition
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE i.indrelid = t.oid AND i.indisunique
    AND NOT EXISTS (SELECT FROM pg_constraint k
                    WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x'))) r)`

type triggerFacts struct {
	Name, Function, Language string
	Type                     int // tgtype of pg_trigger
	// Returns are the words after RETURN in the source of the function, in lower case.
	Returns []string
	Always  bool // it has neither WHEN nor OF
}

// The bits of tgtype.
const (
	triggerRow, triggerBefore                   = 1, 2
	triggerInsert, triggerDelete, triggerUpdate = 4, 8, 16
)

// referenceFacts describes a foreign key to the table.
type referenceFacts struct {
	Table        outbox.Table
	Name, Action string // confdeltype: a and r reject the change; c, n and d change the other table
}

// constraintFacts describe a constraint, or a unique index without one.
type constraintFacts struct {
	Name    string
	Index   outbox.Table // empty: it is a constraint
	Unique  bool         // or EXCLUDE
	Columns []string
}

// firing is a kind of statement that fires triggers, and what happens if a trigger suppresses its rows or fails.
type firing struct {
	events             int
	relays             bool // the relay executes it for every message
	suppressed, failed string
}

func (j *databaseJudge) firings(of outbox.Table) []firing {
	const stuck = "dead letters cannot be resent or deleted"
	const stay = "rows stay after they were published, and the relay "
	switch of {
	case j.o.Table.DeadLetter():
		return []firing{
			{triggerInsert, true, "a dead letter that it suppresses is lost", "no message can become a dead letter"},
			{triggerDelete, false, stuck, stuck},
		}
	case j.o.Table.Published():
		return []firing{{triggerInsert, true, "published messages are not kept, or stay in the outbox", unmoved}}
	}
	const lost = "messages of applications and resent dead letters are lost"
	return []firing{
		{triggerDelete | triggerUpdate, true, stay + "sets them aside", stay + "sets them aside or stops publishing"},
		{triggerInsert, false, lost, "no message can be inserted"},
	}
}

// judgeTriggers checks the triggers of a table, or of a partition of it.
func (j *databaseJudge) judgeTriggers(c chart, of, on outbox.Table, triggers []triggerFacts) {
	for _, t := range triggers {
		worst, effect := OK, ""
		for _, f := range j.firings(of) {
			if level, says := t.judge(f); level == Problem || worst == OK {
				worst, effect = level, says
			}
		}
		if worst != OK {
			fix := sql("ALTER TABLE %s DISABLE TRIGGER %s", on.Printed(), quote(t.Name))
			c.add(worst, "triggers", fix.noted("or have %s return the row", outbox.Identifier(t.Function)),
				"trigger %s of %s %s", t.Name, on, effect)
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
	for _, event := range []struct {
		name string
		bit  int
		null string // the row that is null for this event; "": none
	}{{"DELETE", triggerDelete, "new"}, {"UPDATE", triggerUpdate, ""}, {"INSERT", triggerInsert, "old"}} {
		switch {
		case t.Type&f.events&event.bit == 0:
		case t.Language == "plpgsql" && len(t.Returns) == 0 && t.Always:
			return Problem, fmt.Sprintf("runs for each %s and always fails: its function has no RETURN. So %s",
				event.name, f.failed)
		case before && t.suppresses(event.null):
			return Problem, fmt.Sprintf("runs before each %s and returns %s, which is null there: %s",
				event.name, strings.ToUpper(strings.Join(t.Returns, " or ")), f.suppressed)
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

// suppresses: each RETURN of the function returns null, or the row that is null.
func (t triggerFacts) suppresses(null string) bool {
	keeps := func(word string) bool { return word != "null" && word != null }
	return len(t.Returns) > 0 && !slices.ContainsFunc(t.Returns, keeps)
}

// judgeRules: a rule on INSERT, UPDATE or DELETE rewrites the statements.
func (j *databaseJudge) judgeRules(c chart, of outbox.Table, rules []string) {
	for _, rule := range rules {
		c.wrong("triggers", sql("ALTER TABLE %s DISABLE RULE %s", of.Printed(), quote(rule)),
			"rule %s rewrites statements on %s: messages may stay, or get lost", rule, of)
	}
}

// judgeReferences: the relay deletes every row, so a foreign key to the outbox is a problem.
func (j *databaseJudge) judgeReferences(c chart, of, on outbox.Table, references []referenceFacts) {
	for _, r := range references {
		level, effect := Warning, "each message that is published changes rows there"
		switch {
		case of == j.o.Table.Published():
			effect = "old days of the history cannot be dropped"
		case of != j.o.Table:
			effect = "dead letters cannot be deleted or resent, or change that table"
		case r.Action == "a" || r.Action == "r":
			level, effect = Problem, "a row that is referred to is published, cannot be deleted, and is set aside"
		}
		c.add(level, "references", sql("ALTER TABLE %s DROP CONSTRAINT %s", r.Table, quote(r.Name)),
			"foreign key %s of %s refers to %s: %s", r.Name, r.Table, on, effect)
	}
}

// judgeConstraints reports the constraints that can reject what the relay writes. Its migrations create none but the
// primary keys. Those of the other columns of the outbox reject the INSERT of an application, which learns of it.
func (j *databaseJudge) judgeConstraints(c chart, of, on outbox.Table, constraints []constraintFacts) {
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
		c.add(level, "constraints", fix, "%s of %s: %s", name, on, effect)
	}
}
