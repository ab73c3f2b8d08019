package schema

import (
	"context"
	"fmt"
	"strings"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// ExtraColumns are application columns that exist in both tables with the same name and type, quoted for SQL. They move
// to the dead letters and back.
type ExtraColumns []string

// ExtrasSQL selects them: of the outbox $1 and the dead letters $2, without the columns $3.
const ExtrasSQL = `
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
func ReadExtraColumns(
	ctx context.Context, db Querier, table outbox.Table,
) (columns ExtraColumns, err error) {
	known := names(shared | ofOutbox | ofDeadLetter)
	err = db.QueryRow(ctx, ExtrasSQL, table.SQL(), table.DeadLetter().SQL(), known).Scan((*[]string)(&columns))
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
