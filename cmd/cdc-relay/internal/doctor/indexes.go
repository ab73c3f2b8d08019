package doctor

import (
	"regexp"
	"slices"
	"strings"

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
