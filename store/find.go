package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgsnapshot"
	"github.com/cdc-relay/cdc-relay/internal/pgtime"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// FindDue finds rows whose time has come, earliest first, for all keys: those after a place (nil: from the start) that
// were due at the time until (nil: now). At is the database's time of the query; it is zero if no row was found.
func (s *Store) FindDue(
	ctx context.Context, after *outbox.Place, until *time.Time, limit int,
) (found []outbox.Candidate, at time.Time, err error) {
	sql, args := s.sql.findDue, []any{limit, pgtime.ToColumn(until)}
	if after != nil {
		sql, args = s.sql.findDueAfter, append(args, pgtime.ToColumn(&after.Due), after.ID)
	}
	found, err = s.find(ctx, sql, args, &at)
	return found, at, err
}

// FindNewest finds rows without a time, with a key or without, from <= id <= upTo.
func (s *Store) FindNewest(ctx context.Context, from, upTo int64, limit int) ([]outbox.Candidate, error) {
	return s.find(ctx, s.sql.findNewest, []any{from, upTo, limit})
}

// FindKeys finds the next keys with rows, at most keys of them, and up to each rows per key, oldest first. After is the
// last key of the previous page; nil: the start. The snapshot was taken before the query.
func (s *Store) FindKeys(
	ctx context.Context, after *string, keys, each int, upTo int64,
) ([]outbox.Run, pgsnapshot.Snapshot, error) {
	if after == nil {
		return s.findRuns(ctx, s.sql.findKeys, upTo, "", keys, each)
	}
	return s.findRuns(ctx, s.sql.findKeysAfter, upTo, *after, keys, each)
}

// FindRuns finds up to each rows per key, oldest first. The snapshot was taken before the query.
func (s *Store) FindRuns(
	ctx context.Context, keys []string, each int, upTo int64,
) ([]outbox.Run, pgsnapshot.Snapshot, error) {
	return s.findRuns(ctx, s.sql.findRuns, upTo, keys, each)
}

// find returns candidates. Further columns of the statement go to more.
func (s *Store) find(ctx context.Context, sql string, args []any, more ...any) ([]outbox.Candidate, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, _ := s.pool.Query(ctx, sql, args...) // its error is also that of the rows
	found, err := candidates(rows, more...)
	if err != nil {
		return nil, fmt.Errorf("find rows of %s: %w", s.table, err)
	}
	return found, nil
}

// send runs a batch. It drops the driver's phrase "error preprocessing batch" from errors.
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

// findRuns asks for rows up to an id; more are the further arguments of the statement.
func (s *Store) findRuns(
	ctx context.Context, sql string, upTo int64, more ...any,
) (runs []outbox.Run, seen pgsnapshot.Snapshot, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	batch := &pgx.Batch{}
	batch.Queue(snapshotSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&seen) })
	batch.Queue(sql, append([]any{upTo}, more...)...).Query(func(rows pgx.Rows) error {
		found, err := candidates(rows)
		runs = outbox.Runs(found)
		return err
	})
	if err := send(ctx, s.pool, batch); err != nil {
		return nil, pgsnapshot.Snapshot{}, fmt.Errorf("find ordering keys of %s: %w", s.table, err)
	}
	return runs, seen, nil
}

func candidates(rows pgx.Rows, more ...any) (found []outbox.Candidate, err error) {
	var c outbox.Candidate
	var due pgtype.Timestamptz
	columns := []any{
		&c.ID, (*[16]byte)(&c.MessageID), &c.OrderingKey, &c.Size, &c.Ready, &due, &c.Superseded,
	}
	_, err = pgx.ForEachRow(rows, append(columns, more...), func() error {
		c.Due = pgtime.FromColumn(due)
		found = append(found, c)
		c.OrderingKey = nil
		return nil
	})
	return found, err
}

const snapshotSQL = `SELECT pg_current_snapshot()::text`

// Snapshot returns what a statement that starts now can see. With name, it also ends a transaction of its own, which
// uses a transaction id and waits for nobody. Without that, a snapshot does not list transactions newer than the last
// one that ended (GetSnapshotData in procarray.c).
func (s *Store) Snapshot(ctx context.Context, name bool) (seen pgsnapshot.Snapshot, err error) {
	if name {
		if _, err := s.exec(ctx, "end the transaction of the snapshot", `SELECT pg_current_xact_id()`); err != nil {
			return seen, err
		}
	}
	err = s.ask(ctx, "ask which transactions are in progress", snapshotSQL, nil, &seen)
	return seen, err
}

// insertPosition is the end of the WAL, as text: rows that an earlier query saw have committed before it.
const insertPosition = `pg_current_wal_insert_lsn()::text`

// Position returns the end of the WAL.
func (s *Store) Position(ctx context.Context) (position uint64, err error) {
	err = s.ask(ctx, "ask where the WAL ends", `SELECT `+insertPosition, nil, (*pglogrepl.LSN)(&position))
	return position, err
}

// NextDue returns how long until FindDue may find a row, at most a day; zero or less: now.
func (s *Store) NextDue(ctx context.Context) (time.Duration, error) {
	var seconds float64
	err := s.ask(ctx, "ask what is due next in "+s.table.String(), s.sql.nextDue, nil, &seconds)
	return time.Duration(seconds * float64(time.Second)), err
}
