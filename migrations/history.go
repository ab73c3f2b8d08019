package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// HistorySQL creates the table of published messages and the function that maintains its partitions.
func HistorySQL(table outbox.Table) (string, error) {
	return functionsSQL("history.sql", table, Function{table.RotatePublished(), "interval"})
}

// MakeHistory runs HistorySQL. It returns false if the history exists already.
func MakeHistory(ctx context.Context, conn *pgx.Conn, table outbox.Table) (made bool, err error) {
	script, err := HistorySQL(table)
	if err != nil {
		return false, err
	}
	err = Together(ctx, conn, table, func(tx pgx.Tx) error {
		// History and function belong to the owner of the outbox.
		err := tx.QueryRow(ctx, `SELECT NOT EXISTS (
			SELECT FROM pg_catalog.pg_class o, pg_catalog.pg_class h, pg_catalog.pg_proc f
			WHERE o.oid = pg_catalog.to_regclass($3)::oid AND h.oid = pg_catalog.to_regclass($1)::oid
			  AND f.oid = pg_catalog.to_regprocedure($2)::oid
			  AND h.relowner = o.relowner AND f.proowner = o.relowner)`,
			table.Published().SQL(), table.RotatePublished().SQL()+"(interval)", table.SQL()).Scan(&made)
		if err != nil || !made {
			return err
		}
		_, err = tx.Exec(ctx, script)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("make the history: %w", err)
	}
	return made, nil
}
