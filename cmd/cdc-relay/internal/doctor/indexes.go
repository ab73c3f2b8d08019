package doctor

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgerrcode"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// indexesSQL lists the B-tree indexes of the relation t. The name of an expression is null. While somebody builds an
// index concurrently, he has such a lock.
const indexesSQL = `(
  SELECT jsonb_agg(jsonb_build_object('index', jsonb_build_object('schema', n.nspname, 'name', c.relname),
    'unique', i.indisunique, 'primary', i.indisprimary, 'valid', i.indisvalid AND i.indisready,
    'building', EXISTS (SELECT FROM pg_locks l WHERE l.relation = t.oid AND l.mode = 'ShareUpdateExclusiveLock'
      AND l.granted AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())),
    'predicate', pg_get_expr(i.indpred, i.indrelid),
    'columns', (SELECT jsonb_agg(a.attname ORDER BY k.n) FROM unnest(i.indkey) WITH ORDINALITY k(attnum, n)
                LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                WHERE k.n <= i.indnkeyatts)))
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam AND m.amname = 'btree'
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE i.indrelid = t.oid)`

type indexFacts struct {
	Index                  outbox.Table
	Columns                []string // "" for an expression
	Predicate              string
	Unique, Primary, Valid bool // valid and ready
	Building               bool // an invalid index may become valid
}

// isLeft reports whether a REINDEX CONCURRENTLY that failed has left the index (manual, "REINDEX").
func (is indexFacts) isLeft() bool {
	return !is.Valid && regexp.MustCompile(`_cc(new|old)[0-9]*$`).MatchString(is.Index.Name)
}

// judgeIndexes compares the indexes with those of the migration, by definition: their names do not matter.
func (j *databaseJudge) judgeIndexes(c chart, of outbox.Table, table tableFacts) {
	wanted, err := migrations.Indexes(j.o.Table, of)
	if c.unknown("index", err) {
		return
	}
	for _, is := range table.Indexes {
		if is.isLeft() && !is.Building {
			c.warn("index", sql("DROP INDEX CONCURRENTLY %s", is.Index),
				"a REINDEX that failed has left the invalid index "+
					"%s of table %s: each INSERT can cost more", is.Index, of)
		}
	}
	for _, want := range wanted {
		serves := func(is indexFacts) bool { return is.serves(want, table.partitioned()) && !is.isLeft() }
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
				of, columns)
			continue
		}
		c.warn("index", fix, "table %s has no valid index on (%s): some statements read the whole table", of, columns)
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

func createIndex(of outbox.Table, table tableFacts, want migrations.Index) steps {
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

// idsSQL reads the sequence after the snapshot was taken, so each visible row has an older id.
const idsSQL = `
SELECT jsonb_build_object('exhausted', next > seqmax AND NOT seqcycle, 'behind', next <= max_id,
                          'narrow', seqmax < 9223372036854775807, 'next', next, 'MaxID', max_id)
FROM (SELECT q.last_value::numeric + CASE WHEN q.is_called THEN s.seqincrement ELSE 0 END AS next, s.seqmax, s.seqcycle,
             coalesce((SELECT max(id) FROM %TABLE%), 0) AS max_id
      FROM %SEQUENCE% q, pg_sequence s WHERE s.seqrelid = q.tableoid AND s.seqincrement > 0) ids`

// idFacts describe the sequence of the column id, if it ascends.
type idFacts struct {
	Exhausted   bool // it is at its last value
	Behind      bool // a row has its next value, or a higher one
	Narrow      bool // its last value is less than that of a bigint
	Next, MaxID json.Number
}

// judgeIDs checks that the sequence has an id for the next row, which is above all others.
func (j *databaseJudge) judgeIDs(c chart) {
	f, name := j.f.ids.value, j.tables.Sequence
	if cache := j.tables.Cache; cache > 1 {
		c.warn("sequence", sql("ALTER SEQUENCE %s CACHE 1", name),
			"sequence %s caches %d ids for each session: "+
				"a later row can get a lower id and overtake earlier rows of its ordering key", name, cache)
	}
	setval := func(highest string) steps {
		return sql("SELECT pg_catalog.setval(%s, %s(pg_catalog.max(id), 0) + 1, false) FROM %s",
			name.Literal(), highest, j.o.Table.Printed())
	}
	switch err := j.f.ids.err; {
	case j.tables.Increment < 0:
		ascend := sql("ALTER SEQUENCE %s INCREMENT BY 1 NO MINVALUE NO MAXVALUE START 1 RESTART", name)
		c.wrong("sequence", lines(sql("BEGIN"), ascend, setval("greatest"), sql("COMMIT")),
			"sequence %s descends: the newest row is published first, and the order is reversed", name)
	case pgcode.Is(err, pgerrcode.InsufficientPrivilege, pgerrcode.UndefinedColumn): // another check reports it
	case c.unknown("sequence", err):
	case f.Exhausted && f.Narrow:
		c.wrong("sequence", sql("ALTER SEQUENCE %s AS bigint NO MAXVALUE", name),
			"sequence %s is at its MAXVALUE: every INSERT fails", name)
	case f.Exhausted:
		c.wrong("sequence", setval("coalesce").noted("when the relay has published the row with the highest id"),
			"sequence %s is at its MAXVALUE: every INSERT fails", name)
	case f.Behind:
		c.wrong("sequence", setval("coalesce"),
			"sequence %s is at %s, but the table has id %s: an INSERT fails as soon as it gets the id of a row",
			name, f.Next, f.MaxID)
	}
}
