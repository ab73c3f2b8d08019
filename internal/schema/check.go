// Package schema knows the tables of an outbox: their columns, and what a relay's role must be able to do with them.
package schema

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Use is what a relay uses of an outbox.
type Use struct {
	Table outbox.Table
	// Headers are application columns that are sent as headers.
	Headers []string
	// History is how long published messages stay in the history; 0: there is none.
	History time.Duration
}

// Check returns a *problem.Problem if a table, a column or a privilege is missing. Any other error means that the
// database did not answer.
func (u Use) Check(ctx context.Context, db Querier) error {
	for _, t := range Needs(u.Table) {
		if err := u.checkTable(ctx, db, t); err != nil {
			return err
		}
	}
	if err := CheckHeaders(ctx, db, u.Table, u.Headers); err != nil {
		return err
	}
	if u.History > 0 {
		if err := u.checkHistory(ctx, db); err != nil {
			return err
		}
	}
	return u.checkSequence(ctx, db)
}

// checkHistory checks the history, and the function that maintains its partitions.
func (u Use) checkHistory(ctx context.Context, db Querier) error {
	if err := u.checkTable(ctx, db, HistoryNeed(u.Table)); err != nil {
		return err
	}
	name := u.Table.RotatePublished()
	var there, may bool
	var role string
	err := db.QueryRow(ctx, `
SELECT f IS NOT NULL, coalesce(pg_catalog.has_function_privilege(f, 'EXECUTE'), false),
       pg_catalog.quote_ident(current_user)
FROM pg_catalog.to_regprocedure($1) f`, name.SQL()+"(interval)").Scan(&there, &may, &role)
	switch {
	case err != nil:
		return fmt.Errorf("look for function %s: %w", name, err)
	case !there:
		return problem.New(u.setup(u.Table.Published()),
			"function %s(interval) does not exist: the history %s needs it", name, u.Table.Published())
	case !may:
		return u.denied(ctx, db, fmt.Sprintf("GRANT EXECUTE ON FUNCTION %s(interval) TO %s;", name, role),
			"role %s may not call function %s", role, name)
	}
	return nil
}

// setup returns the command that creates one table of an outbox.
func (u Use) setup(missing outbox.Table) string {
	if missing == u.Table.Published() {
		return problem.Command(u.Table, "setup", "--keep-published", problem.Hours(cmp.Or(u.History, 168*time.Hour)))
	}
	return problem.Command(u.Table, "setup")
}

// Need is what a relay needs of one table.
type Need struct {
	Table      outbox.Table
	Columns    []string
	Privileges []string
}

// Needs returns the needed tables of an outbox, the outbox first.
func Needs(table outbox.Table) []Need {
	return []Need{
		{table, names(shared | ofOutbox), []string{"SELECT", "UPDATE", "DELETE"}},
		{table.DeadLetter(), names(shared | ofDeadLetter), []string{"SELECT", "INSERT"}},
	}
}

// HistoryNeed is what a relay needs of the table of published messages.
func HistoryNeed(table outbox.Table) Need {
	return Need{table.Published(), names(shared | ofHistory), []string{"INSERT"}}
}

// ReportNeed is what a relay needs to tell others what it does. It works without.
func ReportNeed(table outbox.Table) Need {
	return Need{Table: migrations.RelayTable(table), Privileges: []string{"SELECT", "INSERT", "UPDATE", "DELETE"}}
}

// checkSequence: store.LastID reads the sequence to tell old rows, which may have been published, from new rows.
func (u Use) checkSequence(ctx context.Context, db Querier) error {
	var sequence *string
	var role string
	err := db.QueryRow(ctx, `
SELECT (SELECT name FROM pg_catalog.pg_get_serial_sequence($1, 'id') name
        WHERE name IS NOT NULL AND NOT pg_catalog.has_sequence_privilege(name, 'SELECT, USAGE')),
       pg_catalog.quote_ident(current_user)`,
		u.Table.SQL()).Scan(&sequence, &role)
	if err != nil {
		return fmt.Errorf("check the sequence of %s: %w", u.Table, err)
	}
	if sequence != nil {
		return u.denied(ctx, db, fmt.Sprintf("GRANT SELECT ON SEQUENCE %s TO %s;", *sequence, role),
			"role %s may not SELECT on sequence %s", role, *sequence)
	}
	return nil
}

func (u Use) checkTable(ctx context.Context, db Querier, need Need) error {
	table := need.Table
	var usage bool
	var kind, role, database string
	err := db.QueryRow(ctx, `
SELECT coalesce((SELECT c.relkind::text
                 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                 WHERE n.nspname = $1 AND c.relname = $2), ''),
       coalesce(pg_catalog.has_schema_privilege(
         pg_catalog.to_regnamespace(pg_catalog.quote_ident($1))::oid, 'USAGE'), true),
       pg_catalog.quote_ident(current_user), current_database()`,
		table.Schema, table.Name).Scan(&kind, &usage, &role, &database)
	if err != nil {
		return fmt.Errorf("look for table %s: %w", table, err)
	}
	if kind != "" && kind != "r" && kind != "p" {
		// setup says how to rename it
		return problem.New(u.setup(table), "%s in database %s is not a table", table, database)
	}
	if kind == "" {
		return u.Missing(ctx, db, table, database)
	}
	if !usage {
		return u.denied(ctx, db, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;", outbox.Identifier(table.Schema), role),
			"role %s may not use schema %s", role, table.Schema)
	}
	if err := migrations.CheckColumns(ctx, db, u.Table, table); err != nil {
		return err
	}
	var denied []string
	var hidden bool
	err = db.QueryRow(ctx, `
SELECT coalesce(array(SELECT p FROM pg_catalog.unnest($2::text[]) p
                      WHERE NOT pg_catalog.has_table_privilege($1::regclass, p)), '{}'),
       pg_catalog.row_security_active($1::regclass)`,
		table.SQL(), need.Privileges).Scan(&denied, &hidden)
	if err != nil {
		return fmt.Errorf("check table %s: %w", table, err)
	}
	if len(denied) > 0 {
		all := strings.Join(denied, ", ")
		return u.denied(ctx, db, fmt.Sprintf("GRANT %s ON %s TO %s;", all, table, role),
			"role %s may not %s on table %s", role, all, table)
	}
	if hidden {
		return problem.HiddenRows(table, role)
	}
	return nil
}

// denied is the problem that the relay's role lacks a privilege. The role of an application does not get it.
func (u Use) denied(ctx context.Context, db Querier, grant, format string, args ...any) *problem.Problem {
	found := problem.New(grant, format, args...)
	var inserts bool
	err := db.QueryRow(ctx, `
SELECT coalesce(pg_catalog.has_any_column_privilege(t.oid, 'INSERT')
         AND NOT pg_catalog.has_any_column_privilege(t.oid, 'UPDATE')
         AND NOT pg_catalog.has_table_privilege(t.oid, 'DELETE'), false)
FROM (SELECT pg_catalog.to_regclass($1)::oid AS oid) t`, u.Table.SQL()).Scan(&inserts)
	if found.Denied = err != nil || !inserts; !found.Denied {
		found.What += ": it only inserts, as the role of an application"
		found.Fix = "# use the relay's own role in --database-url (CDC_RELAY_DATABASE_URL)"
	}
	return found
}

// Explain adds what a person must do if a column, a table or a privilege is missing. Gone: a column or table is
// missing, so no retry helps. A privilege may be granted again.
func (u Use) Explain(ctx context.Context, db Querier, err error) (explained error, gone bool) {
	if found := ExplainIdentity(ctx, db, u.Table, err); found != nil {
		return found, false
	}
	gone = pgcode.Is(err, pgerrcode.UndefinedColumn, pgerrcode.UndefinedTable)
	if !gone && !pgcode.Is(err, pgerrcode.InsufficientPrivilege, pgerrcode.LockNotAvailable) {
		return ExplainType(u.Table, err), false
	}
	explained = withFix(ctx, db, u.Table, err, u.Check)
	return explained, gone && problem.Is(explained)
}

// CheckDeletesDeadLetters returns a *problem.Problem if the role may not delete dead letters.
func (u Use) CheckDeletesDeadLetters(ctx context.Context, db Querier) error {
	return u.checkTable(ctx, db, Need{Table: u.Table.DeadLetter(), Privileges: []string{"SELECT", "DELETE"}})
}

// ExplainDeadLetters is Explain for a statement that deletes dead letters.
func (u Use) ExplainDeadLetters(ctx context.Context, db Querier, err error) error {
	return withFix(ctx, db, u.Table.DeadLetter(), err, u.CheckDeletesDeadLetters)
}

// ExplainReport is Explain for a statement on the table of relays.
func (u Use) ExplainReport(ctx context.Context, db Querier, err error) error {
	need := ReportNeed(u.Table)
	return withFix(ctx, db, need.Table, err, func(ctx context.Context, db Querier) error {
		return u.checkTable(ctx, db, need)
	})
}

// ExplainHistory is Explain for a statement on the history.
func (u Use) ExplainHistory(ctx context.Context, db Querier, err error) error {
	return withFix(ctx, db, u.Table.Published(), err, u.checkHistory)
}

func withFix(
	ctx context.Context, db Querier, table outbox.Table, err error, check func(context.Context, Querier) error,
) error {
	if pgcode.Is(err, pgerrcode.LockNotAvailable) {
		return migrations.Blocked(ctx, db, err, table)
	}
	if found := check(ctx, db); problem.Is(found) {
		return found
	}
	return err
}
