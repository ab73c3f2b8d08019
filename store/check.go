package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgerrcode"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Check returns a *problem.Problem if a table, a column or a privilege is missing. Any other error means that the
// database did not answer.
func (s *Store) Check(ctx context.Context) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	for _, t := range Needs(s.table) {
		if err := s.checkTable(ctx, t.Table, t.Columns, t.Privileges); err != nil {
			return err
		}
	}
	if err := CheckHeaders(ctx, s.pool, s.table, s.headers); err != nil {
		return err
	}
	if err := s.checkHistory(ctx); err != nil {
		return err
	}
	return s.checkSequence(ctx)
}

// historySQL asks whether the history $1 and its function $2 exist and may be used, and which of the columns $3 are
// missing.
const historySQL = `
SELECT pg_catalog.to_regclass($1) IS NOT NULL, pg_catalog.to_regprocedure($2) IS NOT NULL,
  coalesce(pg_catalog.has_table_privilege(pg_catalog.to_regclass($1), 'INSERT')
    AND pg_catalog.has_function_privilege(pg_catalog.to_regprocedure($2), 'EXECUTE'), false),
  array(SELECT c FROM pg_catalog.unnest($3::text[]) c WHERE NOT EXISTS (
    SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = pg_catalog.to_regclass($1)::oid
      AND a.attname = c AND NOT a.attisdropped AND a.attnum > 0)),
  pg_catalog.quote_ident(current_user)`

// checkHistory checks the history, if the store keeps published messages.
func (s *Store) checkHistory(ctx context.Context) error {
	if !s.keeps {
		return nil
	}
	need, rotate := HistoryNeed(s.table), s.table.RotatePublished().SQL()+"(interval)"
	published := need.Table
	var there, rotates, may bool
	var missing []string
	var role string
	setup := s.table.Command("setup", "--keep-published", "168h")
	err := s.pool.QueryRow(ctx, historySQL, published.SQL(), rotate, need.Columns).
		Scan(&there, &rotates, &may, &missing, &role)
	switch {
	case err != nil:
		return fmt.Errorf("look for table %s: %w", published, err)
	case !there:
		return problem.New(setup, "table %s does not exist: --keep-published needs it", published)
	case !rotates:
		return problem.New(setup, "function %s does not exist: the history %s needs it", rotate, published)
	case len(missing) > 0:
		return problem.New(s.table.Command("check", "--keep-published", "168h")+"  # prints the ALTER TABLE",
			"table %s has no column %s", published, strings.Join(missing, ", "))
	case !may:
		function := s.table.RotatePublished().String() + "(interval)"
		return problem.New(
			fmt.Sprintf("GRANT INSERT ON %s TO %s; GRANT EXECUTE ON FUNCTION %s TO %[2]s;", published, role, function),
			"role %s may not write the history %s", role, published)
	}
	return nil
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
		{table, []string{
			"id", "message_id", "exchange", "routing_key", "ordering_key", "payload", "payload_bytes", "headers",
			"properties", "redacted_payload", "schema_version", "created_at", "available_at", "attempts", "last_error",
			"possible_duplicate", "expires_at", "max_attempts", "coalesce_key",
		}, []string{"SELECT", "UPDATE", "DELETE"}},
		{table.DeadLetter(), []string{
			"id", "message_id", "exchange", "routing_key", "ordering_key", "payload", "payload_bytes", "headers",
			"properties", "redacted_payload", "schema_version", "created_at", "attempts", "last_error",
			"possible_duplicate", "expires_at", "max_attempts", "coalesce_key", "failure_reason", "dead_at",
		}, []string{"SELECT", "INSERT"}},
	}
}

// HistoryNeed is what a relay needs of the table of published messages.
func HistoryNeed(table outbox.Table) Need {
	columns := slices.DeleteFunc(slices.Clone(Needs(table)[0].Columns), func(name string) bool {
		return name == "available_at"
	})
	return Need{table.Published(), append(columns, "published_at"), []string{"INSERT"}}
}

// checkSequence: LastID reads the sequence to tell old rows, which may have been published, from new rows.
func (s *Store) checkSequence(ctx context.Context) error {
	var sequence *string
	var role string
	err := s.pool.QueryRow(ctx, `
SELECT (SELECT name FROM pg_catalog.pg_get_serial_sequence($1, 'id') name
        WHERE name IS NOT NULL AND NOT pg_catalog.has_sequence_privilege(name, 'SELECT, USAGE')),
       pg_catalog.quote_ident(current_user)`,
		s.table.SQL()).Scan(&sequence, &role)
	if err != nil {
		return fmt.Errorf("check the sequence of %s: %w", s.table, err)
	}
	if sequence != nil {
		return problem.New(fmt.Sprintf("GRANT SELECT ON SEQUENCE %s TO %s;", *sequence, role),
			"role %s may not SELECT on sequence %s", role, *sequence)
	}
	return nil
}

func (s *Store) checkTable(ctx context.Context, table outbox.Table, columns, privileges []string) error {
	var usage bool
	var kind, role, database string
	err := s.pool.QueryRow(ctx, `
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
		return problem.New(s.table.Command("setup"), "%s in database %s is not a table", table, database)
	}
	if kind == "" {
		return Missing(ctx, s.pool, s.table, table, database)
	}
	if !usage {
		return problem.New(fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;", outbox.Identifier(table.Schema), role),
			"role %s may not use schema %s", role, table.Schema)
	}
	var missing, denied []string
	var hidden bool
	err = s.pool.QueryRow(ctx, `
SELECT coalesce(array(SELECT c FROM pg_catalog.unnest($2::text[]) c WHERE NOT EXISTS (
         SELECT 1 FROM pg_catalog.pg_attribute a
         WHERE a.attrelid = $1::regclass::oid AND a.attname = c AND NOT a.attisdropped AND a.attnum > 0)), '{}'),
       coalesce(array(SELECT p FROM pg_catalog.unnest($3::text[]) p
                      WHERE NOT pg_catalog.has_table_privilege($1::regclass, p)), '{}'),
       pg_catalog.row_security_active($1::regclass)`,
		table.SQL(), columns, privileges).Scan(&missing, &denied, &hidden)
	if err != nil {
		return fmt.Errorf("check table %s: %w", table, err)
	}
	if len(missing) > 0 {
		return problem.New(s.table.Command("setup", "--tables-only"),
			"table %s has no column %s", table, strings.Join(missing, ", "))
	}
	if len(denied) > 0 {
		return problem.New(fmt.Sprintf("GRANT %s ON %s TO %s;", strings.Join(denied, ", "), table, role),
			"role %s may not %s on table %s", role, strings.Join(denied, ", "), table)
	}
	if hidden {
		return problem.New(
			fmt.Sprintf("ALTER ROLE %s BYPASSRLS;  -- or ALTER TABLE %s DISABLE ROW LEVEL SECURITY;", role, table),
			"row-level security of table %s hides rows from role %s", table, role)
	}
	return nil
}

// lockedError is for a statement that waited too long for a lock on the table.
type lockedError struct {
	table outbox.Table
	err   error
}

func (e *lockedError) Error() string { return e.err.Error() }
func (e *lockedError) Unwrap() error { return e.err }

// Hint returns SQL that lists the sessions with such a lock.
func (e *lockedError) Hint() string {
	return fmt.Sprintf("SELECT pid, usename, application_name, state, query "+
		"FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE relation = %s::regclass AND granted "+
		"AND mode <> ALL ('{AccessShareLock,RowShareLock,RowExclusiveLock}');", e.table.Literal())
}

// Explain adds what a person must do if a column, a table or a privilege is missing. Gone: a column or table is
// missing, so no retry helps. A privilege may be granted again.
func (s *Store) Explain(ctx context.Context, err error) (explained error, gone bool) {
	if pgcode.Is(err, pgerrcode.LockNotAvailable) {
		return &lockedError{s.table, err}, false
	}
	if found := ExplainIdentity(ctx, s.pool, s.table, err); found != nil {
		return found, false
	}
	if mistyped := ExplainType(ctx, s.pool, s.table, err); mistyped != nil {
		return mistyped, false
	}
	gone = pgcode.Is(err, pgerrcode.UndefinedColumn, pgerrcode.UndefinedTable)
	if !gone && !pgcode.Is(err, pgerrcode.InsufficientPrivilege) {
		return err, false
	}
	if found := s.Check(ctx); problem.Is(found) {
		return found, gone
	}
	return err, false
}
