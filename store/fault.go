package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// forever keeps all partitions of the history.
const forever = 100 * 365 * 24 * time.Hour

// noPartition is the error if no partition could be created, with the reason if it is known.
func (s *Store) noPartition(err, failed error) error {
	if failed != nil {
		err = fmt.Errorf("%w; %w", failed, err)
	}
	if problem.Hint(err) == "" {
		err = problem.Of(err, problem.Command(s.table, "check", "--keep-published", problem.Hours(s.keep)),
			"table %s has no partition for today", s.table.Published())
	}
	return &historyFault{err}
}

// historyFault is the error of a statement for which the history has no partition. No row is at fault.
type historyFault struct{ error }

func (f *historyFault) Unwrap() error { return f.error }

// lacksPartition reports whether the history has no partition for a row. Such an error has no constraint
// (ExecFindPartition in execPartition.c).
func (s *Store) lacksPartition(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && answer.Code == pgerrcode.CheckViolation && answer.ConstraintName == "" &&
		answer.SchemaName == s.table.Schema && answer.TableName == s.table.Published().Name
}

const deleteTriggersSQL = `
SELECT pg_catalog.min(t.tgname) FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
WHERE t.tgrelid = $1::text::regclass AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND t.tgtype & 8 <> 0
  AND ($2 = '' OR pg_catalog.strpos($2, 'function ' || p.proname || '(') > 0 OR
       pg_catalog.strpos($2, '.' || p.proname || '(') > 0)
HAVING count(*) = 1`

// Repair returns the SQL that removes what kept a row from being deleted: the foreign key that the error is about, or
// the only trigger that may have done it; "": it is not certain.
func (s *Store) Repair(ctx context.Context, err error) string {
	var answer *pgconn.PgError
	where := ""
	if errors.As(err, &answer) {
		if answer.Code == pgerrcode.ForeignKeyViolation && answer.ConstraintName != "" {
			referring := outbox.Table{Schema: answer.SchemaName, Name: answer.TableName}
			return fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s;  -- or delete the rows there that refer to it",
				referring, outbox.Identifier(answer.ConstraintName))
		}
		where = answer.Where
	} else if !errors.Is(err, ErrUnchanged) {
		return ""
	}
	var trigger string
	if s.ask(ctx, "find the trigger", deleteTriggersSQL, []any{s.table.SQL(), where}, &trigger) != nil {
		return "" // none, several, or the server does not answer: check names them
	}
	return fmt.Sprintf("ALTER TABLE %s DISABLE TRIGGER %s;", s.table, outbox.Identifier(trigger))
}

// IsRowFault reports whether a statement failed because of one of its rows: a type, a constraint, a trigger or a
// function.
func IsRowFault(err error) bool {
	if _, is := schema.LacksIdentity(err); is || errors.As(err, new(*historyFault)) {
		return false
	}
	switch pgcode.Class(err) {
	case "09", "0A", pgcode.DataException, pgcode.ConstraintViolation, "27", "2F", "38", "39", "42", "44", "54", "P0":
		return !pgcode.Is(err, pgerrcode.InsufficientPrivilege)
	}
	return errors.Is(err, ErrUnchanged)
}

// ErrUnchanged is returned if a trigger or a rule kept a row from being changed as decided.
var ErrUnchanged = errors.New("the database has left the row unchanged")
