package operator

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// selection is the rows to change, as they were at the start. It is a cursor on the server: neither side holds the rows
// in memory, and no snapshot stays open.
type selection struct {
	conn  *pgx.Conn
	total int64
}

const selectionName = "cdc_relay_selection"

// choose selects the rows of a change. The caller must close the selection.
func (t *Tables) choose(ctx context.Context, from chooser) (*selection, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	where, args := from.filter.where(from.from, from.args)
	err := pgx.BeginFunc(ctx, t.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, mayScan); err != nil {
			return err
		}
		// WITH HOLD keeps the rows after the transaction.
		_, err := tx.Exec(ctx,
			"DECLARE "+selectionName+" SCROLL CURSOR WITH HOLD FOR "+t.fill(from.query, "{where}", where), args...)
		return err
	})
	if err != nil {
		return nil, err
	}
	s := &selection{conn: t.conn}
	moved, err := t.conn.Exec(ctx, "MOVE FORWARD ALL FROM "+selectionName)
	if err == nil {
		s.total = moved.RowsAffected()
		_, err = t.conn.Exec(ctx, "MOVE ABSOLUTE 0 FROM "+selectionName)
	}
	if err != nil {
		s.close(ctx)
		return nil, err
	}
	return s, nil
}

// storedSize is how many bytes the server moves or deletes for a row r.
const storedSize = `coalesce(pg_catalog.pg_column_size(r.payload), 0)::bigint
  + coalesce(pg_catalog.pg_column_size(r.payload_bytes), 0)
  + coalesce(pg_catalog.pg_column_size(r.redacted_payload), 0)
  + coalesce(pg_catalog.pg_column_size(r.headers), 0)
  + coalesce(pg_catalog.pg_column_size(r.properties), 0)
  + coalesce(pg_catalog.pg_column_size(r.last_error), 0)`

// batchBytes bounds the stored bytes of one batch, so that batchTimeout suffices. A larger row is a batch of its own.
const batchBytes = 64 << 20

// inBatches passes the rows to change, at most batch at a time.
func (s *selection) inBatches(ctx context.Context, batch int, progress Progress, change func([]chosenRow) error) error {
	for done := int64(0); ; {
		progress(done, s.total)
		rows, err := s.take(ctx, batch)
		if err != nil || len(rows) == 0 {
			return err
		}
		for len(rows) > 0 {
			n := fitting(rows)
			if err := change(rows[:n]); err != nil {
				return err
			}
			if rows, done = rows[n:], done+int64(n); len(rows) > 0 {
				progress(done, s.total)
			}
		}
	}
}

// fitting returns how many of the rows, at least one, have at most batchBytes together.
func fitting(rows []chosenRow) int {
	bytes := int64(0)
	for i, row := range rows {
		if bytes += row.Size; bytes > batchBytes && i > 0 {
			return i
		}
	}
	return len(rows)
}

// take returns the next rows; none: the end.
func (s *selection) take(ctx context.Context, n int) ([]chosenRow, error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	// Describe again, because the previous selection may have had other columns.
	rows, err := s.conn.Query(ctx, fmt.Sprintf("FETCH FORWARD %d FROM %s", n, selectionName),
		pgx.QueryExecModeDescribeExec)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[chosenRow])
}

// move runs a statement that inserts one batch into the outbox. The statement returns how many rows it took and how
// many it inserted. A trigger can discard an INSERT without an error; then nothing is moved. It finishes even if ctx is
// done, so that the counts are right.
func (t *Tables) move(ctx context.Context, sql string, args ...any) (moved int64, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
	defer cancel()
	err = pgx.BeginFunc(ctx, t.conn, func(tx pgx.Tx) error {
		var taken int64
		if err := tx.QueryRow(ctx, sql, args...).Scan(&taken, &moved); err != nil {
			return err
		}
		if moved < taken {
			return problem.New("cdc-relay check  # prints the trigger; drop it",
				"table %s keeps %d of %d rows: a trigger discards the others", t.table, moved, taken)
		}
		return nil
	})
	return moved, err
}

func (s *selection) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), glanceTimeout)
	defer cancel()
	_, _ = s.conn.Exec(ctx, "CLOSE "+selectionName) // it ends with the connection anyway
}

// chosenRow names a row of a selection.
type chosenRow struct {
	ID        int64
	MessageID [16]byte
	// PublishedAt is set for the history.
	PublishedAt pgtype.Timestamptz
	// Place is the id that a requeued row gets.
	Place int64
	// Size is storedSize.
	Size int64
}

// columnsOf returns the ids and the message ids, for unnest.
func columnsOf(rows []chosenRow) []any {
	ids, messageIDs := make([]int64, len(rows)), make([][16]byte, len(rows))
	for i, row := range rows {
		ids[i], messageIDs[i] = row.ID, row.MessageID
	}
	return []any{ids, messageIDs}
}

// Agreed receives the number of the selected rows before the first change. If it returns an error, nothing is changed.
// nil agrees to any number.
type Agreed func(total int64) error

// Progress receives how many of how many rows are done.
type Progress func(done, total int64)
