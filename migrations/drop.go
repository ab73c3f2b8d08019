package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// NotEmptyError says that the tables contain messages, so they were not dropped.
type NotEmptyError struct {
	Table outbox.Table
	// Waiting and Dead count the messages, each up to a hundred.
	Waiting, Dead int
}

func (e *NotEmptyError) Error() string {
	return fmt.Sprintf("%s has %s and %s has %s: no table was dropped",
		e.Table, messages(e.Waiting), e.Table.DeadLetter(), messages(e.Dead))
}

// countUpTo limits counting: nobody wants to read a large table for this message.
const countUpTo = 100

func messages(n int) string {
	switch {
	case n == 1:
		return "1 message"
	case n >= countUpTo:
		return fmt.Sprintf("%d messages or more", countUpTo)
	}
	return fmt.Sprintf("%d messages", n)
}

// Drop removes the tables of an outbox, its functions and the version table, but not the schema. It returns a
// *NotEmptyError if the tables contain messages. dropped is false if there was nothing to drop.
func Drop(ctx context.Context, conn *pgx.Conn, table outbox.Table, owner ...string) (dropped bool, err error) {
	there, err := exist(ctx, conn, table, owner)
	if err != nil || !there {
		return false, err
	}
	err = Together(ctx, conn, table, func(tx pgx.Tx) error { return drop(ctx, tx, table) })
	if err != nil {
		return false, fmt.Errorf("drop tables: %w", err)
	}
	return true, nil
}

func drop(ctx context.Context, tx pgx.Tx, table outbox.Table) error {
	// No message may arrive between the check and the drop. INSERTs of applications queue behind the request for the
	// lock.
	lock := fmt.Sprintf("LOCK TABLE %s, %s IN ACCESS EXCLUSIVE MODE",
		table.SQL(), table.DeadLetter().SQL())
	if _, err := tx.Exec(ctx, lock); err != nil {
		return err
	}
	if err := look(ctx, tx, table); err != nil {
		return err
	}
	_, err := tx.Exec(ctx,
		fmt.Sprintf("DROP TABLE %s, %s, %s; DROP TABLE IF EXISTS %s, %s; DROP FUNCTION IF EXISTS %s, %s(interval)",
			table.SQL(), table.DeadLetter().SQL(), VersionTable(table).SQL(),
			table.Published().SQL(), RelayTable(table).SQL(),
			strings.Join(signatures(table), ", "), table.RotatePublished().SQL()))
	return err
}

// CheckEmpty returns a *NotEmptyError if the tables contain messages.
func CheckEmpty(ctx context.Context, conn *pgx.Conn, table outbox.Table, owner ...string) error {
	there, err := exist(ctx, conn, table, owner)
	if err != nil || !there {
		return err
	}
	return look(ctx, conn, table)
}

// exist reports whether there are tables, of this version or a newer one.
func exist(ctx context.Context, conn *pgx.Conn, table outbox.Table, owner []string) (bool, error) {
	state, err := Status(ctx, conn, table, owner...)
	if errors.Is(err, ErrNewer) {
		err = nil
	}
	return state.Current > 0, err
}

// querier is a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func look(ctx context.Context, db querier, table outbox.Table) error {
	full := &NotEmptyError{Table: table}
	count := fmt.Sprintf(`
		SELECT (SELECT count(*) FROM (SELECT FROM %[1]s LIMIT %[3]d) w),
		       (SELECT count(*) FROM (SELECT FROM %[2]s LIMIT %[3]d) d)`,
		table.SQL(), table.DeadLetter().SQL(), countUpTo)
	if err := db.QueryRow(ctx, count).Scan(&full.Waiting, &full.Dead); err != nil {
		return fmt.Errorf("look for messages: %w", err)
	}
	if full.Waiting > 0 || full.Dead > 0 {
		return full
	}
	return nil
}
