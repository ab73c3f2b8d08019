package migrations

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"text/template"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

//go:embed history.sql
var historyTemplate string

// HistorySQL creates the table of published messages and the function that maintains its partitions.
func HistorySQL(table outbox.Table) (string, error) {
	if err := checkName(table); err != nil {
		return "", err
	}
	parsed, err := template.New("history").Parse(historyTemplate)
	if err != nil {
		return "", fmt.Errorf("parse history: %w", err)
	}
	published, rotate := table.Published(), table.RotatePublished()
	last := lastPartition(table)
	var b strings.Builder
	before, after := ClaimSQL(table, Function{rotate, "interval"})
	b.WriteString(localPath + before)
	err = parsed.Execute(&b, map[string]string{
		"published":       published.SQL(),
		"literal":         quoteLiteral(published.SQL()),
		"outbox_literal":  quoteLiteral(table.SQL()),
		"index":           outbox.QuoteIdentifier(uniqueName(published.Name, "pkey")),
		"quote":           dollarQuote(table),
		"default":         last.SQL(),
		"default_literal": quoteLiteral(last.SQL()),
		"schema":          quoteLiteral(table.Schema),
		"prefix":          quoteLiteral(last.Name),
		"rotate":          rotate.SQL(),
		"claim":           after,
	})
	if err != nil {
		return "", fmt.Errorf("render history: %w", err)
	}
	return b.String(), nil
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
