package schema

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// typeOf returns the type of a column; "": no table has it.
func typeOf(name string) string {
	for _, c := range columns() {
		if c.name == name {
			return c.kind
		}
	}
	return ""
}

// typesTimeout limits the look-up of types after an error.
const typesTimeout = 5 * time.Second

// ExplainType returns which column has a wrong type, and how to convert it, if that can be the cause of an error; else
// nil. Types that the statements also understand, such as varchar, are no cause.
func ExplainType(ctx context.Context, db Querier, table outbox.Table, err error) error {
	mayBeType := errors.As(err, new(pgx.ScanArgError)) || pgcode.Is(err, pgerrcode.UndefinedFunction,
		pgerrcode.DatatypeMismatch, pgerrcode.CannotCoerce, pgerrcode.AmbiguousFunction)
	if !mayBeType {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, typesTimeout)
	defer cancel()
	rows, _ := db.Query(ctx, `
SELECT c.relname::text, a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname = $1 AND c.relname = ANY ($2::text[]) ORDER BY c.relname, a.attnum`,
		table.Schema, []string{table.Name, table.DeadLetter().Name}) // its error is also that of the rows
	var relation, column, is string
	var found *problem.Problem
	_, failed := pgx.ForEachRow(rows, []any{&relation, &column, &is}, func() error {
		want := typeOf(column)
		if want == "" || found != nil || is == want || compatible(is, want) {
			return nil
		}
		on := outbox.Table{Schema: table.Schema, Name: relation}
		fix := fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s DROP DEFAULT, "+
			"ALTER COLUMN %[2]s TYPE %[3]s USING %[2]s::text::%[3]s;  "+
			"-- locks and rewrites the table; then check says which default to set",
			on, outbox.Identifier(column), want)
		found = problem.Of(err, fix,
			"column %s of table %s is %s, and has to be %s", column, on, problem.OneLine(is), want)
		return nil
	})
	if failed != nil || found == nil {
		return nil
	}
	return found
}

// compatible: the statements and the stream treat them alike.
func compatible(is, want string) bool {
	const text = "character varying"
	return want == "text" && len(is) >= len(text) && is[:len(text)] == text
}
