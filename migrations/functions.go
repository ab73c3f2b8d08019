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

//go:embed functions.sql
var functionsTemplate string

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

// older returns signatures of earlier versions, each with the one that replaces it.
func older(table outbox.Table) (old, replacedBy []string) {
	enqueue, celery := Functions(table)[0], Functions(table)[1]
	for _, f := range []struct {
		now        Function
		parameters string
	}{
		{enqueue, "text, json, text, text, jsonb, jsonb, timestamptz, timestamptz, text, uuid"},
		{enqueue, "text, json, text, text, jsonb, jsonb, timestamptz, integer, timestamptz, text, uuid"},
		{celery, "text, json, json, text, timestamptz, numeric, timestamptz, integer, uuid, text"},
		{celery, "text, json, json, text, timestamptz, double precision, timestamptz, integer, uuid, text"},
	} {
		old = append(old, Function{f.now.Name, f.parameters}.SQL())
		replacedBy = append(replacedBy, f.now.SQL())
	}
	return old, replacedBy
}

// everySignature returns the signatures of this version and of earlier ones.
func everySignature(table outbox.Table) []string {
	old, _ := older(table)
	return append(old, signatures(table)...)
}

func functionName(table outbox.Table, suffix string) string { return named(table, suffix).SQL() }

func named(table outbox.Table, suffix string) outbox.Table {
	return outbox.Table{Schema: table.Schema, Name: table.Name + "_" + suffix}
}

// FunctionsSQL creates the functions for applications, in one transaction. Nobody but their owner may call new ones.
func FunctionsSQL(table outbox.Table) (string, error) {
	if err := checkName(table); err != nil {
		return "", err
	}
	parsed, err := template.New("functions").Parse(functionsTemplate)
	if err != nil {
		return "", fmt.Errorf("parse functions: %w", err)
	}
	old, replacedBy := older(table)
	var b strings.Builder
	before, after := ClaimSQL(table, Functions(table)...)
	b.WriteString(localPath + before)
	err = parsed.Execute(&b, map[string]string{
		"outbox":         table.SQL(),
		"dead_letter":    table.DeadLetter().SQL(),
		"outbox_literal": quoteLiteral(table.SQL()),
		"enqueue":        functionName(table, "enqueue"),
		"celery":         functionName(table, "celery"),
		"await":          functionName(table, "await"),
		"cancel":         functionName(table, "cancel"),
		"claim":          after,
		"older":          literals(old),
		"newer":          literals(replacedBy),
		"quote":          dollarQuote(table),
	})
	if err != nil {
		return "", fmt.Errorf("render functions: %w", err)
	}
	return b.String(), nil
}

func literals(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = quoteLiteral(text)
	}
	return strings.Join(quoted, ", ")
}

// dollarQuote picks a dollar quote that does not occur in the table's name.
func dollarQuote(table outbox.Table) string {
	quote := "$body$"
	for strings.Contains(table.SQL(), quote) {
		quote = strings.TrimSuffix(quote, "$") + "_$"
	}
	return quote
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
		JOIN pg_proc p ON p.oid = pg_catalog.to_regprocedure(f)`, everySignature(table)).Scan(&state)
	return state, err
}
