package doctor

import (
	"slices"
	"strings"

	"github.com/jackc/pgerrcode"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// judgeIndexes compares the indexes with those of the migration, by definition: their names do not matter.
func (j *databaseJudge) judgeIndexes(c *chart, of outbox.Table, table tableFacts) {
	wanted, err := migrations.Indexes(j.o.Table, of)
	if err != nil {
		c.unknown("index", err)
		return
	}
	for _, want := range wanted {
		serves := func(is indexFacts) bool { return is.serves(want, table.partitioned()) }
		if slices.ContainsFunc(table.Indexes, func(is indexFacts) bool { return is.Valid && serves(is) }) {
			continue
		}
		fix, columns := createIndex(of, table, want), strings.Join(want.Columns, ", ")
		if broken := slices.IndexFunc(table.Indexes, serves); broken >= 0 && !table.partitioned() {
			fix = sql("REINDEX INDEX CONCURRENTLY %s", table.Indexes[broken].Index)
		}
		if want.Primary {
			c.wrong("index", fix,
				"table %s has no valid primary key (%s): every scan sorts the whole table, and ids may be duplicates",
				of, columns).about(of.String())
			continue
		}
		c.warn("index", fix,
			"table %s has no valid index on (%s): some statements read the whole table", of, columns).about(of.String())
	}
}

// serves reports whether an index can replace the wanted one. A partitioned table may have no unique index on these
// columns alone.
func (is indexFacts) serves(want migrations.Index, partitioned bool) bool {
	if len(is.Columns) < len(want.Columns) || !slices.Equal(is.Columns[:len(want.Columns)], want.Columns) {
		return false
	}
	if want.Primary && !partitioned && (!is.Unique || len(is.Columns) > len(want.Columns)) {
		return false
	}
	return is.Predicate == "" || is.Predicate == "("+want.Predicate+")"
}

func createIndex(of outbox.Table, table tableFacts, want migrations.Index) fix {
	columns, concurrently, where := strings.Join(want.Columns, ", "), "CONCURRENTLY ", ""
	if table.partitioned() {
		concurrently = "" // Postgres does not support it
	}
	if want.Predicate != "" {
		where = " WHERE " + want.Predicate
	}
	other := slices.ContainsFunc(table.Indexes, func(is indexFacts) bool { return is.Primary })
	switch {
	case want.Primary && !table.partitioned() && !other:
		return sql("ALTER TABLE %s ADD PRIMARY KEY (%s)", of.Printed(), columns).noted("locks the table meanwhile")
	case want.Primary && !table.partitioned():
		return sql("CREATE UNIQUE INDEX CONCURRENTLY ON %s (%s)", of.Printed(), columns)
	}
	return sql("CREATE INDEX %sON %s (%s)%s", concurrently, of.Printed(), columns, where)
}

// judgeIDs checks that the sequence has an id for the next row, which is above all others.
func (j *databaseJudge) judgeIDs(c *chart) {
	f, name := j.f.ids.value, j.f.tables.value.Sequence
	if t := j.f.tables.value; t.Cache > 1 {
		c.warn("sequence", sql("ALTER SEQUENCE %s CACHE 1", name),
			"sequence %s caches %d ids for each session: "+
				"a later row can get a lower id and overtake earlier rows of its ordering key", name, t.Cache)
	}
	if j.f.tables.value.Increment < 0 {
		c.wrong("sequence",
			lines(
				sql("BEGIN"),
				sql("ALTER SEQUENCE %s INCREMENT BY 1 NO MINVALUE NO MAXVALUE START 1 RESTART", name),
				sql("SELECT pg_catalog.setval(%s, greatest(pg_catalog.max(id), 0) + 1, false) FROM %s",
					name.Literal(), j.o.Table.Printed()),
				sql("COMMIT"),
			),
			"sequence %s descends: the newest row is published first, and the order is reversed", name)
		return
	}
	setval := sql("SELECT pg_catalog.setval(%s, coalesce(pg_catalog.max(id), 0) + 1, false) FROM %s",
		name.Literal(), j.o.Table.Printed())
	switch {
	case pgcode.Is(j.f.ids.err, pgerrcode.InsufficientPrivilege, pgerrcode.UndefinedColumn): // another check reports it
	case j.f.ids.err != nil:
		c.unknown("sequence", j.f.ids.err)
	case f.Exhausted && f.Narrow:
		c.wrong("sequence", sql("ALTER SEQUENCE %s AS bigint NO MAXVALUE", name),
			"sequence %s is at its MAXVALUE: every INSERT fails", name)
	case f.Exhausted:
		c.wrong("sequence", setval.noted("when the relay has published the row with the highest id"),
			"sequence %s is at its MAXVALUE: every INSERT fails", name)
	case f.Behind:
		c.wrong("sequence", setval,
			"sequence %s is at %s, but the table has id %s: an INSERT fails as soon as it gets the id of a row",
			name, f.Next, f.MaxID)
	}
}
