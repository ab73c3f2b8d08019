package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/grants"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// historyFacts describe the partitions of published messages. Columns and privileges are in tablesFacts.
type historyFacts struct {
	// Rotates: the function that creates and drops partitions exists. Execute: the relay's role may call it. It runs
	// with the privileges of its Owner. Creates: the owner of the outbox may create tables in the schema.
	Rotates, Execute bool
	Owner            string
	Creates          bool
	// Foreign are tables of the history that this role cannot drop, up to ten.
	Foreign []outbox.Table
	// Default is the default partition; empty: there is none. Detached: a table has its name. Used: it has pages.
	// Readable: the role may read it.
	Default                  outbox.Table
	Detached, Used, Readable bool
	Days                     []dayFacts // today and tomorrow
	// Old counts the partitions that should have been dropped; Oldest is the first of them.
	Old    int
	Oldest outbox.Table
	// OldRows counts the old rows among the first 1000 of the default partition.
	OldRows int
}

// dayFacts describe the partition of one day.
type dayFacts struct {
	Table    outbox.Table
	From, To string
	// Attached: it is a partition. There: a table of that name exists.
	Attached, There bool
	// InDefault: the default partition has rows of the day, or may have, so the day's partition cannot be created.
	InDefault bool
}

// rotationSlack is how late a drop may be. Relays drop partitions every ten minutes.
const rotationSlack = time.Hour

const historySQL = `
WITH own AS (SELECT c.relowner, c.relnamespace FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = $1 AND c.relname = $6 AND c.relkind IN ('r', 'p')),
history AS (SELECT c.oid, c.relnamespace FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                 WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind = 'p'),
parts AS (SELECT c.oid, c.relname, c.relowner, jsonb_build_object('schema', n.nspname, 'name', c.relname) AS name,
          pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT' AS rest
          FROM history h JOIN pg_inherits i ON i.inhparent = h.oid JOIN pg_class c ON c.oid = i.inhrelid
            JOIN pg_namespace n ON n.oid = c.relnamespace),
rotation AS (SELECT p.oid, p.proowner FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
             WHERE n.nspname = $1 AND p.proname = $3 AND p.proargtypes::text = 'interval'::regtype::oid::text),
days AS (SELECT d.at AT TIME ZONE 'UTC' AS begins, (d.at + interval '1 day') AT TIME ZONE 'UTC' AS ends,
         $4 || to_char(d.at, 'YYYYMMDD') AS name
         FROM generate_series(0, 1) nth, LATERAL (
           SELECT date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC') + nth * interval '1 day' AS at) d),
old AS (SELECT p.name, p.relname FROM parts p WHERE p.relname ~ '_p[0-9]{8}$'
        AND (to_timestamp(right(p.relname, 8), 'YYYYMMDD')::date + 1)::timestamp AT TIME ZONE 'UTC'
          <= clock_timestamp() - $5::text::interval)
SELECT jsonb_build_object('rotates', EXISTS (SELECT FROM rotation),
  'execute', (SELECT has_function_privilege(oid, 'EXECUTE') FROM rotation),
  'owner', (SELECT pg_get_userbyid(proowner) FROM rotation),
  'creates', coalesce((SELECT has_schema_privilege(o.relowner, o.relnamespace, 'CREATE') FROM own o), true),
  'foreign', (SELECT jsonb_agg(name) FROM (
     SELECT t.name FROM own o, (SELECT name, relowner FROM parts UNION ALL
       SELECT jsonb_build_object('schema', $1::text, 'name', $2::text), c.relowner FROM history h
         JOIN pg_class c USING (oid)) t
     WHERE NOT pg_has_role(o.relowner, t.relowner, 'USAGE') ORDER BY t.name LIMIT 10) f),
  'default', (SELECT name FROM parts WHERE rest),
  'detached', EXISTS (SELECT FROM history h JOIN pg_class c ON c.relnamespace = h.relnamespace AND c.relname = $4),
  'used', (SELECT pg_relation_size(oid) > 0 FROM parts WHERE rest),
  'readable', (SELECT has_table_privilege(oid, 'SELECT') FROM parts WHERE rest),
  'days', (SELECT jsonb_agg(jsonb_build_object(
             'table', jsonb_build_object('schema', $1::text, 'name', d.name), 'from', d.begins, 'to', d.ends,
             'attached', EXISTS (SELECT FROM parts p WHERE p.relname = d.name),
             'there', EXISTS (SELECT FROM history h
                              JOIN pg_class c ON c.relnamespace = h.relnamespace AND c.relname = d.name)
           ) ORDER BY d.begins) FROM days d),
  'old', (SELECT count(*) FROM old), 'oldest', (SELECT name FROM old ORDER BY relname LIMIT 1))`

// askHistory reads the state of the partitions. Of the default partition it reads the first rows, and rows of a day
// without a partition.
func (o Options) askHistory(ctx context.Context, s *session) answer[historyFacts] {
	published, tooOld := o.Table.Published(), fmt.Sprintf("%.0f s", (o.KeepPublished+rotationSlack).Seconds())
	a := ask[historyFacts](ctx, s, historySQL, published.Schema, published.Name, o.Table.RotatePublished().Name,
		o.Table.Name+"_p", tooOld, o.Table.Name)
	if a.err != nil || !a.value.Used {
		return a
	}
	from := " FROM " + a.value.Default.SQL() + " r "
	for i := range a.value.Days {
		day := &a.value.Days[i]
		if day.InDefault = !day.Attached; day.Attached || !a.value.Readable {
			continue
		}
		rows := ask[bool](ctx, s, "SELECT to_jsonb(EXISTS (SELECT"+from+
			"WHERE r.published_at >= $1::timestamptz AND r.published_at < $2::timestamptz))", day.From, day.To)
		if day.InDefault, a.err = rows.value, rows.err; a.err != nil {
			return a
		}
	}
	if a.value.Readable {
		old := ask[int](ctx, s, "SELECT to_jsonb(count(*)) FROM (SELECT r.published_at"+from+
			"ORDER BY r.id LIMIT 1000) r WHERE r.published_at <= clock_timestamp() - $1::text::interval", tooOld)
		a.value.OldRows, a.err = old.value, old.err
	}
	return a
}

// judgeHistory checks that published messages can be moved to the history, and that old ones are dropped.
func (j *databaseJudge) judgeHistory(c chart) {
	published := j.o.Table.Published()
	table, there := j.tables.Tables[published.Name]
	kind, other := j.tables.Others[published.Name]
	switch {
	case j.o.KeepPublished == 0:
		if there {
			c.ok("history", "%s exists, but --keep-published is not set: "+
				"relays without it move no message there and drop no old day", published)
		}
		return
	case other:
		c.wrong("history", j.outOfTheWay(published, kind),
			"%s is %s, and has to be a table: %s", published, migrations.WithArticle(kind), unmoved)
		return
	case !there:
		c.wrong("history", j.setupCommand(),
			"table %s does not exist in database %q: relays with --keep-published exit", published, j.server.Database)
		return
	}
	if missing := j.judgeColumns(c, published, table); len(missing) > 0 {
		for i := range missing {
			missing[i].NotNull = false // the table may have rows
		}
		c.wrong("history", j.restore(published, missing),
			"table %s has no column %s: %s", published, columnNames(missing), unmoved)
	}
	j.judgeObstacles(c, published, table)
	if !table.partitioned() {
		c.warn("history", j.outOfTheWay(published, "TABLE"),
			"table %s is not partitioned: published messages go there, and old ones are never dropped", published)
		return
	}
	j.judgePartitions(c)
}

// unmoved is what happens to published messages that cannot be moved to the history.
const unmoved = "published rows cannot be moved there and stay in the outbox; " +
	"after ten of them the relay stops publishing"

func (j *databaseJudge) judgePartitions(c chart) {
	if c.about("").unknown("history", j.f.history.err) {
		return
	}
	f, before := j.f.history.value, len(*c.findings)
	published := j.o.Table.Published()
	if !f.Rotates {
		c.wrong("history", j.setupCommand(), "function %s does not exist: relays with --keep-published exit",
			j.o.Table.RotatePublished())
		return
	}
	j.judgeRotation(c.about(j.o.Table.RotatePublished().String()), f)
	if f.Default == (outbox.Table{}) {
		last := outbox.Table{Schema: j.o.Table.Schema, Name: j.o.Table.Name + "_p"}.Printed()
		fix := sql("CREATE TABLE %s PARTITION OF %s DEFAULT WITH (toast_tuple_target = 8160)",
			last, published.Printed())
		if f.Detached {
			fix = sql("ALTER TABLE %s ATTACH PARTITION %s DEFAULT", published.Printed(), last)
		}
		c.wrong("history", lines(fix, sql("ALTER TABLE %s OWNER TO %s", last, quote(j.table.Owner))),
			"%s has no default partition: on a day without a partition, %s", published, unmoved)
	}
	for i, day := range f.Days {
		j.judgeDay(c.about(day.Table.String()), []string{"today", "tomorrow"}[i], day)
	}
	if f.Old > 0 || f.OldRows > 0 {
		what := fmt.Sprintf("%s, the oldest %s,", counted(f.Old, "partition", "partitions"), f.Oldest)
		if f.Old == 0 {
			what = fmt.Sprintf("rows of the default partition %s", f.Default)
		}
		c.warn("history", j.rotate().noted("a session that reads the history delays it; "+
			"a relay with --keep-published does it every ten minutes"),
			"%s should have been dropped: older than %s. Messages are published; the disk fills",
			what, problem.Hours(j.o.KeepPublished))
	}
	if len(*c.findings) == before {
		c.ok("history", "%s, partitions for today and tomorrow, none older than %s",
			published, problem.Hours(j.o.KeepPublished))
	}
}

// judgeRotation checks the function, which runs as its owner. Setup gives it to the owner of the outbox, and drops the
// function of anybody else, so such a function is not repaired.
func (j *databaseJudge) judgeRotation(c chart, f historyFacts) {
	function, own := j.o.Table.RotatePublished(), j.table.Owner
	const effect = "days of the history are neither created nor dropped"
	if f.Owner != own {
		c.warn("history", j.setupCommand().noted("drops and creates it"),
			"function %s belongs to role %q, and not to %q, the owner of the outbox, so %[2]q decides what it does",
			function, f.Owner, own)
	}
	if len(f.Foreign) > 0 {
		var fixes steps
		var names []string
		for _, table := range f.Foreign {
			fixes = lines(fixes, sql("ALTER TABLE %s OWNER TO %s", table, quote(own)))
			names = append(names, table.String())
		}
		c.warn("history", fixes,
			"%q, the owner of the outbox, does not own %s: %s", own, strings.Join(names, ", "), effect)
	}
	if !f.Creates {
		c.warn("history", sql("GRANT CREATE ON SCHEMA %s TO %s", quote(j.o.Table.Schema), quote(own)).safe(),
			"function %s runs as %q, the owner of the outbox, who may not create tables in schema %s: %s",
			function, own, j.o.Table.Schema, effect)
	}
}

func (j *databaseJudge) judgeDay(c chart, when string, day dayFacts) {
	published := j.o.Table.Published()
	if day.Attached {
		return
	}
	fix := j.rotate()
	if day.InDefault || day.There { // the function cannot create it
		var move steps
		if day.InDefault {
			move = sql("WITH moved AS (DELETE FROM %s WHERE published_at >= '%s' AND published_at < '%s' RETURNING *) "+
				"INSERT INTO %s SELECT * FROM moved", j.f.history.value.Default, day.From, day.To, day.Table)
		}
		fix = lines(sql("BEGIN"),
			sql("LOCK TABLE %s IN ACCESS EXCLUSIVE MODE", published.Printed()).noted("relays wait"),
			sql("CREATE TABLE IF NOT EXISTS %s (LIKE %s INCLUDING ALL) WITH (toast_tuple_target = 8160)",
				day.Table, published.Printed()),
			sql("ALTER TABLE %s OWNER TO %s", day.Table, quote(j.table.Owner)), move,
			sql("ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM ('%s') TO ('%s')",
				published.Printed(), day.Table, day.From, day.To),
			sql("COMMIT"))
	}
	c.warn("history", fix,
		"%s has no partition for %s (%s): its messages go to the default partition, and are deleted row by row",
		published, when, day.Table)
}

// judgeHistoryGrants checks that the relay's role may move rows to the history and call the function.
func (j *databaseJudge) judgeHistoryGrants(c chart) {
	need := schema.HistoryNeed(j.o.Table)
	table, there := j.tables.Tables[need.Table.Name]
	if j.o.KeepPublished == 0 || !there {
		return
	}
	j.judgePrivileges(c.about(need.Table.String()), need, table)
	if f := j.f.history; f.err == nil && f.value.Rotates && !f.value.Execute {
		function := j.o.Table.RotatePublished()
		c.about(function.String()).wrong("relay", j.grant(grants.Rotate(j.o.Table)),
			"role %q may not EXECUTE function %s: relays with --keep-published exit", j.role.Name, function)
	}
}

// rotate returns the call that creates and drops partitions, as a relay makes it.
func (j *databaseJudge) rotate() steps {
	return sql("SELECT %s(interval '%.0f s')", j.o.Table.RotatePublished().Printed(), j.o.KeepPublished.Seconds())
}
