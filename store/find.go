package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// FindDue finds rows whose time has come, oldest first, without a look at the order of their keys. With ties, rows of
// exactly the time after come again.
func (s *Store) FindDue(ctx context.Context, after time.Time, ties bool, limit int) ([]outbox.Candidate, error) {
	from := toColumn(after)
	if after.IsZero() {
		from = toColumn(past())
	}
	return s.find(ctx, s.sql.findDue, from, limit, ties)
}

// FindBacklog finds rows without a key and a time of their own, between two ids.
func (s *Store) FindBacklog(ctx context.Context, after, upTo int64, limit int, fresh outbox.Fresh) ([]outbox.Candidate, error) {
	return s.find(ctx, s.sql.findBacklog, after, upTo, limit, fresh.UpTo, fresh.Age)
}

// FindKeys finds the next keys that have rows, from the first key on or from the one after a key, and the first rows of
// each, at most so many. The snapshot is of before the query.
func (s *Store) FindKeys(ctx context.Context, after *string, keys, each int, fresh outbox.Fresh) ([]outbox.Run, outbox.Snapshot, error) {
	if after == nil {
		return s.findRuns(ctx, s.sql.findKeys, "", keys, each, fresh.UpTo, fresh.Age)
	}
	return s.findRuns(ctx, s.sql.findKeysAfter, *after, keys, each, fresh.UpTo, fresh.Age)
}

// FindRuns finds the first rows of these keys, at most so many of each. The snapshot is of before the query.
func (s *Store) FindRuns(ctx context.Context, keys []string, each int, fresh outbox.Fresh) ([]outbox.Run, outbox.Snapshot, error) {
	return s.findRuns(ctx, s.sql.findRuns, keys, each, fresh.UpTo, fresh.Age)
}

func (s *Store) find(ctx context.Context, sql string, args ...any) ([]outbox.Candidate, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("find rows of %s: %w", s.table, err)
	}
	found, err := candidates(rows)
	if err != nil {
		return nil, fmt.Errorf("find rows of %s: %w", s.table, err)
	}
	return found, nil
}

// send runs a batch. Of its errors only what Postgres says is kept, without "error preprocessing batch".
func send(ctx context.Context, db interface {
	SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults
}, batch *pgx.Batch,
) error {
	err := db.SendBatch(ctx, batch).Close()
	var driver pgx.ErrPreprocessingBatch
	if errors.As(err, &driver) {
		return driver.Unwrap()
	}
	return err
}

func (s *Store) findRuns(ctx context.Context, sql string, args ...any) (runs []outbox.Run, seen outbox.Snapshot, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	batch := &pgx.Batch{}
	batch.Queue(snapshotSQL).QueryRow(func(row pgx.Row) (err error) {
		seen, err = scanSnapshot(row)
		return err
	})
	batch.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		found, err := candidates(rows)
		runs = outbox.Runs(found)
		return err
	})
	if err := send(ctx, s.pool, batch); err != nil {
		return nil, outbox.Snapshot{}, fmt.Errorf("find ordering keys of %s: %w", s.table, err)
	}
	return runs, seen, nil
}

func candidates(rows pgx.Rows) (found []outbox.Candidate, err error) {
	var c outbox.Candidate
	var due pgtype.Timestamptz
	_, err = pgx.ForEachRow(rows, []any{&c.ID, (*[16]byte)(&c.MessageID), &c.OrderingKey, &c.Size, &c.Ready, &due, &c.Superseded}, func() error {
		c.Due = fromColumn(due)
		found = append(found, c)
		c.OrderingKey = nil
		return nil
	})
	return found, err
}

const snapshotSQL = `SELECT pg_current_snapshot()::text`

func scanSnapshot(row pgx.Row) (outbox.Snapshot, error) {
	var text string
	if err := row.Scan(&text); err != nil {
		return outbox.Snapshot{}, err
	}
	return outbox.ParseSnapshot(text)
}

// Snapshot is what a statement that begins now can see. With name it names all transactions that are in progress: for
// that one is ended which is newer than all others, as one that is newer than all that have ended is not in the list of
// a snapshot (GetSnapshotData in procarray.c). It uses a transaction id and waits for nobody.
func (s *Store) Snapshot(ctx context.Context, name bool) (seen outbox.Snapshot, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if name {
		if _, err := s.pool.Exec(ctx, `SELECT pg_current_xact_id()`); err != nil {
			return seen, fmt.Errorf("end a transaction of its own: %w", err)
		}
	}
	if seen, err = scanSnapshot(s.pool.QueryRow(ctx, snapshotSQL)); err != nil {
		return seen, fmt.Errorf("ask which transactions are in progress: %w", err)
	}
	return seen, nil
}

// insertPosition is where the WAL ends: all that a query before it saw has committed before.
const insertPosition = `(pg_current_wal_insert_lsn() - '0/0')::bigint`

// Position is where the WAL ends now.
func (s *Store) Position(ctx context.Context) (position uint64, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if err := s.pool.QueryRow(ctx, `SELECT `+insertPosition).Scan(&position); err != nil {
		return 0, fmt.Errorf("ask where the WAL ends: %w", err)
	}
	return position, nil
}

// NextDue is how long it takes until FindDue may find something; zero or less: it may
// now. If no row has a time of its own, it is a day.
func (s *Store) NextDue(ctx context.Context) (time.Duration, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var seconds float64
	if err := s.pool.QueryRow(ctx, s.sql.nextDue).Scan(&seconds); err != nil {
		return 0, fmt.Errorf("ask what is due next in %s: %w", s.table, err)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}
