package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Functions returns the functions of an outbox: <table>_enqueue, <table>_celery, <table>_await and <table>_cancel.
func Functions(table outbox.Table) []Function {
	return []Function{
		{
			named(table, "enqueue"),
			"text, json, text, text, jsonb, jsonb, timestamptz, integer, timestamptz, text, uuid, json",
		},
		{
			named(table, "celery"),
			"text, json, json, text, timestamptz, double precision, timestamptz, integer, uuid, text, json",
		},
		{named(table, "await"), "uuid, interval"},
		{named(table, "cancel"), "uuid"},
	}
}

func signatures(table outbox.Table) (all []string) {
	for _, f := range Functions(table) {
		all = append(all, f.SQL())
	}
	return all
}

func named(table outbox.Table, suffix string) outbox.Table {
	return outbox.Table{Schema: table.Schema, Name: table.Name + "_" + suffix}
}

// FunctionsSQL creates the functions for applications, in one transaction. Nobody but their owner may call new ones.
func FunctionsSQL(table outbox.Table) (string, error) {
	return functionsSQL("functions.sql", table, Functions(table)...)
}

// MakeFunctions runs FunctionsSQL. It returns false if that changed nothing.
func MakeFunctions(ctx context.Context, conn *pgx.Conn, table outbox.Table) (changed bool, err error) {
	script, err := FunctionsSQL(table)
	if err != nil {
		return false, err
	}
	err = Together(ctx, conn, table, func(tx pgx.Tx) error {
		before, err := functionState(ctx, tx, table)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, script); err != nil {
			return err
		}
		after, err := functionState(ctx, tx, table)
		changed = before != after
		return err
	})
	if err != nil {
		return false, fmt.Errorf("make functions: %w", err)
	}
	return changed, nil
}

// functionState describes the existing functions: definition, owner and grants.
func functionState(ctx context.Context, tx pgx.Tx, table outbox.Table) (state string, err error) {
	err = tx.QueryRow(ctx, `
		SELECT coalesce(pg_catalog.string_agg(
			pg_catalog.concat(pg_catalog.pg_get_functiondef(p.oid), proowner, proacl), ' ' ORDER BY p.oid), '')
		FROM pg_catalog.unnest($1::text[]) AS f
		JOIN pg_proc p ON p.oid = pg_catalog.to_regprocedure(f)`, signatures(table)).Scan(&state)
	return state, err
}
