package schema

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// CheckHeaders returns a problem if a column of the table cannot be sent as a header. It asks by a pool or a
// connection.
func CheckHeaders(ctx context.Context, db Querier, table outbox.Table, columns []string) error {
	if len(columns) == 0 {
		return nil
	}
	rows, _ := db.Query(ctx, `
SELECT c.name, a.attname IS NOT NULL, coalesce(pg_catalog.format_type(a.atttypid, NULL), ''),
       coalesce(a.attgenerated <> '', false)
FROM pg_catalog.unnest($2::text[]) c(name) LEFT JOIN pg_catalog.pg_attribute a
  ON a.attrelid = $1::regclass::oid AND a.attname = c.name AND NOT a.attisdropped AND a.attnum > 0`,
		table.SQL(), columns) // its error is also that of the rows
	var name, kind string
	var there, generated bool
	var found error
	_, err := pgx.ForEachRow(rows, []any{&name, &there, &kind, &generated}, func() error {
		switch {
		case found != nil:
		case !there:
			found = problem.New(
				fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s text;  -- or leave it out of --header-columns",
					table, outbox.Identifier(name)),
				"table %s has no column %s, which --header-columns lists", table, name)
		case generated:
			found = problem.New(
				"# leave it out of --header-columns, or make it an ordinary column that the INSERT sets",
				"column %s of table %s is generated: the stream does not contain it, and --header-columns lists it",
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
