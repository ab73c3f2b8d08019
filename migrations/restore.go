package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Restore creates tables again that were dropped although the recorded version has them, and returns them. It fails if
// a column was dropped or renamed: only a person knows which.
func Restore(ctx context.Context, conn *pgx.Conn, table outbox.Table) (made []outbox.Table, err error) {
	if err := lock(ctx, conn); err != nil {
		return nil, fmt.Errorf("lock migrations: %w", err)
	}
	defer func() { err = errors.Join(err, unlock(ctx, conn)) }()
	state, err := Status(ctx, conn, table)
	if err != nil {
		return nil, err
	}
	for _, t := range []outbox.Table{table, table.DeadLetter()} {
		there, err := exists(ctx, conn, t)
		if err != nil {
			return nil, err
		}
		if !there {
			made = append(made, t)
		} else if err := checkColumns(ctx, conn, table, t, state); err != nil {
			return nil, err
		}
	}
	if len(made) == 0 || state.Current == 0 {
		return nil, nil
	}
	steps, err := rendered(table, made...)
	if err != nil {
		return nil, err
	}
	return made, pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		for _, step := range steps[:state.Current] {
			if _, err := tx.Exec(ctx, localPath+step.UpSQL); err != nil {
				return fmt.Errorf("recreate %s: %w", made[0], err)
			}
		}
		return nil
	})
}

// ObjectsSQL lists the objects that can have the name of a table, with the kind as ALTER writes it. A type needs the
// name as well, because a table creates one.
const ObjectsSQL = `
SELECT c.relname AS name, c.relnamespace AS namespace,
       CASE c.relkind
         WHEN 'r' THEN 'TABLE' WHEN 'p' THEN 'TABLE' WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW'
         WHEN 'f' THEN 'FOREIGN TABLE' WHEN 'S' THEN 'SEQUENCE' WHEN 'c' THEN 'TYPE' ELSE 'INDEX' END AS kind
FROM pg_catalog.pg_class c
UNION ALL
SELECT t.typname, t.typnamespace, CASE t.typtype WHEN 'd' THEN 'DOMAIN' ELSE 'TYPE' END
FROM pg_catalog.pg_type t WHERE t.typrelid = 0 AND t.typcategory <> 'A'`

// WithArticle writes a kind of ObjectsSQL for people: "a view" or "an index".
func WithArticle(kind string) string {
	if kind == "INDEX" {
		return "an index"
	}
	return "a " + strings.ToLower(kind)
}

// exists fails if another kind of object has the name.
func exists(ctx context.Context, conn *pgx.Conn, table outbox.Table) (bool, error) {
	var kind string
	err := conn.QueryRow(ctx, `SELECT o.kind FROM (`+ObjectsSQL+`) o
		JOIN pg_catalog.pg_namespace n ON n.oid = o.namespace WHERE n.nspname = $1 AND o.name = $2`,
		table.Schema, table.Name).Scan(&kind)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for table %s: %w", table, err)
	case kind != "TABLE":
		fix := fmt.Sprintf("ALTER %s %s RENAME TO %s",
			kind, table.Printed(),
			outbox.QuoteIdentifier(table.Name+"_"+strings.ToLower(strings.ReplaceAll(kind, " ", "_"))))
		return false, problem.New(fix, "%s is %s, and has to be a table", table, WithArticle(kind))
	}
	return true, nil
}

// checkColumns is only for tables of the latest version: Up adds columns to older ones.
func checkColumns(ctx context.Context, conn *pgx.Conn, table, of outbox.Table, state State) error {
	if state.Current != Latest {
		return nil
	}
	columns, err := Columns(table, of)
	if err != nil {
		return err
	}
	rows, err := conn.Query(ctx, `
SELECT a.attname FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped`, of.Schema, of.Name)
	if err != nil {
		return fmt.Errorf("look for the columns of %s: %w", of, err)
	}
	there, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look for the columns of %s: %w", of, err)
	}
	for _, c := range columns {
		if !slices.Contains(there, c.Name) {
			return problem.New(c.Add(table, of), "table %s has no column %s", of, c.Name)
		}
	}
	return nil
}
