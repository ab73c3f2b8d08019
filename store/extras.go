package store

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// CheckHeaders returns a problem if a column of the table cannot be sent as a header. It asks by a pool or a
// connection.
func CheckHeaders(ctx context.Context, db querier, table outbox.Table, columns []string) error {
	if len(columns) == 0 {
		return nil
	}
	rows, err := db.Query(ctx, `
SELECT c.name, a.attname IS NOT NULL, coalesce(pg_catalog.format_type(a.atttypid, NULL), ''),
       coalesce(a.attgenerated <> '', false)
FROM pg_catalog.unnest($2::text[]) c(name) LEFT JOIN pg_catalog.pg_attribute a
  ON a.attrelid = $1::regclass::oid AND a.attname = c.name AND NOT a.attisdropped AND a.attnum > 0`,
		table.SQL(), columns)
	if err != nil {
		return fmt.Errorf("check the header columns of %s: %w", table, err)
	}
	var name, kind string
	var there, generated bool
	var found error
	_, err = pgx.ForEachRow(rows, []any{&name, &there, &kind, &generated}, func() error {
		switch {
		case found != nil:
		case !there:
			found = problem.New(
				fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s text;  -- or leave it out of --header-columns",
					table, outbox.Identifier(name)),
				"table %s has no column %s, which --header-columns names", table, name)
		case generated:
			found = problem.New(
				"# leave it out of --header-columns, or make it an ordinary column that the INSERT sets",
				"column %s of table %s is generated: the stream does not bring it, and --header-columns names it",
				name, table)
		case !strings.Contains(", "+outbox.HeaderTypes+",", ", "+kind+","):
			found = problem.New(
				"# leave it out of --header-columns, or give it one of these types: "+outbox.HeaderTypes,
				"column %s of table %s is %s, which --header-columns cannot send", name, table, kind)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("check the header columns of %s: %w", table, err)
	}
	return found
}

// ExtraColumns are application columns that exist in both tables with the same name and type, quoted for SQL. They move
// to the dead letters and back.
type ExtraColumns []string

const extrasSQL = `
SELECT coalesce(pg_catalog.array_agg(pg_catalog.quote_ident(d.attname) ORDER BY d.attnum), '{}')
FROM pg_catalog.pg_attribute o JOIN pg_catalog.pg_attribute d
  ON d.attrelid = $2::regclass::oid AND d.attname = o.attname
  AND d.atttypid = o.atttypid AND d.atttypmod = o.atttypmod
WHERE o.attrelid = $1::regclass::oid AND o.attnum > 0 AND NOT o.attisdropped AND NOT d.attisdropped
  AND o.attgenerated = '' AND d.attgenerated = '' AND o.attidentity = '' AND d.attidentity = ''
  AND o.attname <> ALL ($3)
  AND pg_catalog.has_column_privilege(o.attrelid, o.attnum, 'SELECT')
  AND pg_catalog.has_column_privilege(d.attrelid, d.attnum, 'INSERT')`

// ReadExtraColumns reads them by a pool or a connection.
func ReadExtraColumns(ctx context.Context, db rower, table outbox.Table) (columns ExtraColumns, err error) {
	var known []string
	for _, need := range Needs(table) {
		known = append(known, need.Columns...)
	}
	err = db.QueryRow(ctx, extrasSQL, table.SQL(), table.DeadLetter().SQL(), known).Scan((*[]string)(&columns))
	return columns, err
}

// Fill inserts the columns into a statement that moves rows r: {extra_columns} is what it returns of them,
// {extra_names} and {extra_values} are what it inserts. It uses aliases, because a column may have the same name as a
// computed one.
func (e ExtraColumns) Fill(sql string) string {
	var columns, names, values strings.Builder
	for i, name := range e {
		fmt.Fprintf(&columns, ", r.%s AS extra_%d_", name, i)
		fmt.Fprintf(&names, ", %s", name)
		fmt.Fprintf(&values, ", extra_%d_", i)
	}
	return strings.NewReplacer(
		"{extra_columns}", columns.String(),
		"{extra_names}", names.String(),
		"{extra_values}", values.String(),
	).Replace(sql)
}

// extras remember the columns.
type extras struct {
	mu      sync.Mutex
	columns ExtraColumns
	at      time.Time
}

// extrasFor is how long the list stays valid: a column may be added at any time.
const extrasFor = 10 * time.Second

// read updates the list, unless it is still valid. On an error, the old list stays.
func (e *extras) read(ctx context.Context, db rower, table outbox.Table) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.at.IsZero() && time.Since(e.at) < extrasFor {
		return
	}
	if columns, err := ReadExtraColumns(ctx, db, table); err == nil {
		e.columns, e.at = columns, time.Now()
	}
}

func (e *extras) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = time.Time{}
}

func (e *extras) fill(sql string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.columns.Fill(sql)
}
