package outboxtest

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// PgxQuerier is implemented by pgx.Tx.
type PgxQuerier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// SQLQuerier is implemented by *sql.Tx of database/sql.
type SQLQuerier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Enqueued returns the messages that a transaction has inserted so far, in order, without rows of savepoints that were
// rolled back. Roll the transaction back at the end of the test; then nothing is published. The table is public.outbox
// unless another one is given. The role needs SELECT on it. The query reads the whole table.
func Enqueued(t testing.TB, tx PgxQuerier, table ...outbox.Table) []Message {
	t.Helper()
	rows, err := tx.Query(t.Context(), enqueuedSQL(table))
	if err == nil {
		defer rows.Close()
	}
	return collect(t, rows, err)
}

// EnqueuedSQL does the same as Enqueued for database/sql.
func EnqueuedSQL(t testing.TB, tx SQLQuerier, table ...outbox.Table) []Message {
	t.Helper()
	rows, err := tx.QueryContext(t.Context(), enqueuedSQL(table))
	if err == nil {
		defer rows.Close()
	}
	return collect(t, rows, err)
}

// enqueuedSQL selects the visible rows whose transaction is in progress: only the session's own are visible. Savepoints
// have transaction ids of their own. xmin has 32 bits; the query adds the epoch that brings it nearest to the current
// transaction id.
func enqueuedSQL(table []outbox.Table) string {
	from := outbox.Table{Schema: "public", Name: "outbox"}
	if len(table) > 0 {
		from = table[0]
	}
	return `SELECT ` + columns + ` FROM ` + from.SQL() + ` o,
  LATERAL (SELECT pg_current_xact_id_if_assigned()::text::bigint AS id) own
WHERE own.id IS NOT NULL
  AND pg_xact_status(greatest(
    own.id + ((o.xmin::text::bigint - own.id + 2147483648) & 4294967295) - 2147483648, 3)::text::xid8) = 'in progress'
ORDER BY o.id`
}

func collect(t testing.TB, rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
}, err error,
) (messages []Message) {
	t.Helper()
	for err == nil && rows.Next() {
		var r row
		var m Message
		if err = rows.Scan(r.places()...); err == nil {
			m, err = r.message()
		}
		messages = append(messages, m)
	}
	if err == nil {
		err = rows.Err()
	}
	if err != nil {
		t.Fatalf("outboxtest: read what was enqueued: %v", err)
	}
	return messages
}
