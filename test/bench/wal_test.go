package bench

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// countedPostgres starts a server whose WAL depends only on what its sessions write: no checkpoint adds images of
// pages, and no vacuum runs.
func countedPostgres(t *testing.T) *services.Postgres {
	t.Helper()
	return services.PrivatePostgres(t,
		"full_page_writes=off", "autovacuum=off", "checkpoint_timeout=1h", "max_wal_size=4GB")
}

// walReader reads which WAL was written. It is nil if the server has no pg_walinspect.
type walReader struct {
	conn *pgx.Conn
	from string // the position of the last mark
}

// wal is what was written between two marks: records, their bytes, and how many records are updates of rows.
type wal struct{ records, bytes, updates int64 }

// withoutLate leaves out what a drain writes for messages without an answer in time. Their number depends on the speed
// of the machine. Each such row is locked once more and updated, which adds an entry to two indexes.
func (w wal) withoutLate() wal {
	const records, bytes = 4, 650
	return wal{w.records - records*w.updates, w.bytes - bytes*w.updates, w.updates}
}

func newWALReader(t *testing.T, server *services.Postgres, database string) *walReader {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	services.Must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	var available bool
	err = conn.QueryRow(t.Context(),
		"SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_walinspect')").Scan(&available)
	services.Must(t, err)
	if !available {
		t.Log("the server has no pg_walinspect: its WAL is not counted")
		return nil
	}
	if _, err := conn.Exec(t.Context(), "CREATE EXTENSION pg_walinspect"); err != nil {
		t.Fatal(err)
	}
	return &walReader{conn: conn}
}

// mark sets the start of what since returns.
func (r *walReader) mark(t *testing.T) {
	t.Helper()
	if r != nil {
		r.from = r.flushed(t)
	}
}

// flushed flushes all WAL so far, by a commit, and returns its end.
func (r *walReader) flushed(t *testing.T) (end string) {
	t.Helper()
	if _, err := r.conn.Exec(t.Context(), "SELECT pg_logical_emit_message(true, 'mark', '')"); err != nil {
		t.Fatal(err)
	}
	services.Must(t, r.conn.QueryRow(t.Context(), "SELECT pg_current_wal_flush_lsn()::text").Scan(&end))
	return end
}

// since returns what was written since the mark. It leaves out what is written at times (running transactions, a
// checkpoint), and what a scan writes when it finds rows that are dead by then (pruning).
func (r *walReader) since(t *testing.T) (w wal) {
	t.Helper()
	if r == nil {
		return w
	}
	const sum = `
SELECT coalesce(sum(count), 0)::bigint, coalesce(sum(combined_size), 0)::bigint,
       coalesce(sum(count) FILTER (WHERE "resource_manager/record_type" ~ '^Heap/(HOT_)?UPDATE'), 0)::bigint
FROM pg_get_wal_stats($1::text::pg_lsn, $2::text::pg_lsn, true)
WHERE "resource_manager/record_type" !~ '^(Standby|XLOG)/' AND "resource_manager/record_type" !~ 'PRUNE'`
	row := r.conn.QueryRow(t.Context(), sum, r.from, r.flushed(t))
	services.Must(t, row.Scan(&w.records, &w.bytes, &w.updates))
	return w
}
