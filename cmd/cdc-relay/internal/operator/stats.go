package operator

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/pgtime"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Precision says how exact a count is.
type Precision string

const (
	// Exact: all rows were counted.
	Exact Precision = "exact"
	// AtLeast: counting stopped there.
	AtLeast Precision = "at_least"
	// Estimate: from the server's statistics.
	Estimate Precision = "estimate"
	// Unknown: counting took too long.
	Unknown Precision = "unknown"
)

// Count is a number of rows.
type Count struct {
	N         int64 // 0 if unknown
	Precision Precision
}

// QueueStats are counts of the rows of both tables, taken one after the other.
type QueueStats struct {
	// At is the time of the database.
	At time.Time
	// Depth counts all rows of the outbox.
	Depth Count
	// OldestPending is since when the oldest ready row may leave; nil: none. OldestUnknown: finding it took too long.
	OldestPending *time.Time
	OldestUnknown bool
	// States counts the rows of the outbox in each state; each row has one, so they add up to Depth. Beyond MostCounted
	// rows, AtOnce is the rest. NotDeleted counts the rows of StatsOptions.NotDeleted.
	States map[State]Count
	// OldestAtOnce is since when the oldest row in that state waits; nil: unknown, or there is none.
	OldestAtOnce *time.Time
	// NextRetry and NextScheduled are the earliest times of the rows in these states; nil: there are none.
	NextRetry, NextScheduled *time.Time
	// TimedKeys counts ordering keys whose head must not leave yet.
	TimedKeys Count
	// KeysBehindDead counts ordering keys with rows behind a dead letter.
	KeysBehindDead Count
	DeadLetters    Count
	OldestDead     *time.Time // nil: none
	NewestDead     *time.Time // nil: none
	// FailedDead and FailedRetries are the causes of the dead letters, and of the rejected rows that wait for a retry.
	FailedDead, FailedRetries Groups
}

// MostCounted is up to how many rows are counted, unless the count must be exact.
const MostCounted = 10_000

// fewCounted replaces MostCounted after counting has taken too long.
const fewCounted = 500

// StatsOptions says how to read the state of the queue.
type StatsOptions struct {
	// Groups says how to group failures.
	Groups GroupOptions
	// Exact counts all rows. Else the cost does not depend on the number of rows.
	Exact bool
	Known
}

// Stats reads the state of the queue.
func (t *Tables) Stats(ctx context.Context, o StatsOptions) (QueueStats, error) {
	s := QueueStats{}
	reader := &statsReader{Tables: t, known: o.Known}
	if !o.Exact {
		reader.most = pgtype.Int8{Int64: MostCounted + 1, Valid: true}
	}
	parts := []func(context.Context, querier, *QueueStats) error{
		reader.clock, reader.depth, reader.states, reader.oldest, reader.blocked, reader.dead,
		func(ctx context.Context, tx querier, s *QueueStats) error { return reader.failing(ctx, tx, s, o) },
	}
	read := t.glance
	if o.Exact {
		read = t.look
	}
	err := read(ctx, func(ctx context.Context, tx querier) error {
		for _, part := range parts {
			err := part(ctx, tx, &s)
			if pgcode.Is(err, pgerrcode.QueryCanceled) && reader.most.Valid {
				if err = hurry(ctx, tx); err != nil {
					return err
				}
				reader.most.Int64 = fewCounted + 1
				err = part(ctx, tx, &s)
			}
			if err != nil && !pgcode.Is(err, pgerrcode.QueryCanceled) {
				return err
			}
		}
		return nil
	})
	return s, t.reading(ctx, waiting(o.Known), "look at", err)
}

// statsReader reads the parts. A part that takes too long stays unknown.
type statsReader struct {
	*Tables
	most  pgtype.Int8 // the most rows to count; null: all
	known Known
}

func (r *statsReader) clock(ctx context.Context, tx querier, s *QueueStats) error {
	unknown := Count{Precision: Unknown}
	s.Depth, s.TimedKeys, s.KeysBehindDead, s.DeadLetters = unknown, unknown, unknown, unknown
	s.States = inEachState(unknown)
	s.OldestUnknown, s.FailedDead.N, s.FailedRetries.N = true, unknown, unknown
	return tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&s.At)
}

// counted returns a count that stopped at this many rows; 0: it did not.
func counted(n, stop int64) Count {
	if stop > 0 && n >= stop {
		return Count{stop - 1, AtLeast}
	}
	return Count{n, Exact}
}

// among counts the rows that a statement selects among those that it reads. The statement returns first how many it
// read.
func (r *statsReader) among(ctx context.Context, tx querier, sql string) (Count, error) {
	var read, n int64
	if err := tx.QueryRow(ctx, r.fill(sql), r.most).Scan(&read, &n); err != nil {
		return Count{Precision: Unknown}, err
	}
	return Count{n, counted(read, r.most.Int64).Precision}, nil
}

const rowsSQL = `SELECT count(*) FROM (SELECT 1 FROM {outbox} ORDER BY id LIMIT $1) r`

func (r *statsReader) depth(ctx context.Context, tx querier, s *QueueStats) (err error) {
	const span = `SELECT coalesce(pg_catalog.max(id) - pg_catalog.min(id) + 1, 0) FROM {outbox}`
	s.Depth, err = r.size(ctx, tx, rowsSQL, r.table, span)
	return err
}

// size counts a table. It estimates the count if the table has many rows, or if dead rows make counting slow. Span is
// SQL for the number of ids between the first row and the last, or "".
func (r *statsReader) size(
	ctx context.Context, tx querier, count string, table outbox.Table, span string,
) (Count, error) {
	var n int64
	err := tx.QueryRow(ctx, r.fill(count), r.most).Scan(&n)
	if err == nil && (!r.most.Valid || n < r.most.Int64) {
		return Count{n, Exact}, nil
	}
	if err != nil && !pgcode.Is(err, pgerrcode.QueryCanceled) {
		return Count{}, err
	}
	if err != nil {
		if err := hurry(ctx, tx); err != nil {
			return Count{}, err
		}
	}
	counted, byDensity, failed := estimateRows(ctx, tx, table)
	if failed != nil {
		return Count{}, failed
	}
	estimates := []int64{min(counted, byDensity), max(counted, byDensity)}
	var ids int64
	switch {
	case err != nil && counted > MostCounted: // many dead rows: the span would be slow to read
		return Count{counted, Estimate}, nil
	case err == nil && span != "" && tx.QueryRow(ctx, r.fill(span)).Scan(&ids) == nil:
		estimates = append(estimates, ids)
	}
	if err == nil { // an estimate below the counted number is wrong
		estimates = slices.DeleteFunc(estimates, func(estimate int64) bool { return estimate < n })
	}
	if len(estimates) == 0 {
		return Count{n - 1, AtLeast}, nil
	}
	slices.Sort(estimates)
	return Count{estimates[len(estimates)/2], Estimate}, nil
}

// estimateRows returns two estimates of the server: from the counted inserts and deletes, which a crash loses, and from
// the density at the last ANALYZE, which may be old. With the span of ids as the third, the median is close if only one
// is wrong.
func estimateRows(ctx context.Context, tx querier, table outbox.Table) (counted, byDensity int64, err error) {
	err = tx.QueryRow(ctx, `
SELECT coalesce(pg_catalog.pg_stat_get_live_tuples(c.oid), 0),
       CASE WHEN c.reltuples > 0 AND c.relpages > 0
            THEN c.reltuples::float8 / c.relpages::float8
              * (pg_catalog.pg_relation_size(c.oid) / pg_catalog.current_setting('block_size')::bigint)::float8
            ELSE 0 END::bigint
FROM pg_catalog.pg_class c WHERE c.oid = $1::regclass::oid`, table.SQL()).Scan(&counted, &byDensity)
	return counted, byDensity, err
}

// The first ready row by id, which is nearly the order of creation. A row waits from its time on, if it has one.
const pendingSQL = `
SELECT pg_catalog.min(r.since) FROM (
  SELECT greatest(created_at, available_at) AS since FROM {outbox}
  WHERE (available_at IS NULL OR available_at <= (SELECT clock_timestamp())) AND pg_catalog.isfinite(created_at)
    AND id <> ALL($2::bigint[]) ORDER BY id LIMIT $1) r`

func (r *statsReader) oldest(ctx context.Context, tx querier, s *QueueStats) error {
	most := r.most
	if most.Valid {
		most.Int64 = 100
	}
	var created pgtype.Timestamptz
	err := tx.QueryRow(ctx, r.fill(pendingSQL), most, append([]int64{}, r.known.NotDeleted...)).Scan(&created)
	if err == nil {
		s.OldestPending, s.OldestUnknown = pgtime.FromColumn(created), false
	}
	return err
}

// The keys of dead letters, from key to key, and whether they have waiting rows.
const blockedSQL = `
WITH RECURSIVE keys AS (
  (SELECT d.ordering_key FROM {dead} d WHERE d.ordering_key IS NOT NULL ORDER BY d.ordering_key LIMIT 1)
  UNION ALL
  SELECT n.ordering_key FROM keys k CROSS JOIN LATERAL (
    SELECT d.ordering_key FROM {dead} d WHERE d.ordering_key > k.ordering_key ORDER BY d.ordering_key LIMIT 1) n
)
SELECT count(*), count(*) FILTER (WHERE EXISTS (SELECT 1 FROM {outbox} o
  WHERE o.ordering_key = k.ordering_key OFFSET 0))
FROM (SELECT ordering_key FROM keys LIMIT $1) k`

func (r *statsReader) blocked(ctx context.Context, tx querier, s *QueueStats) (err error) {
	s.KeysBehindDead, err = r.among(ctx, tx, blockedSQL)
	return err
}

const deadRowsSQL = `SELECT count(*) FROM (SELECT 1 FROM {dead} ORDER BY dead_at LIMIT $1) d`

func (r *statsReader) dead(ctx context.Context, tx querier, s *QueueStats) (err error) {
	var oldest, newest pgtype.Timestamptz
	const sql = `SELECT pg_catalog.min(dead_at), pg_catalog.max(dead_at) FROM {dead}`
	if err := tx.QueryRow(ctx, r.fill(sql)).Scan(&oldest, &newest); err != nil {
		return err
	}
	s.OldestDead, s.NewestDead = pgtime.FromColumn(oldest), pgtime.FromColumn(newest)
	s.DeadLetters, err = r.size(ctx, tx, deadRowsSQL, r.table.DeadLetter(), "")
	return err
}

// mostExample is up to how many characters of an error a group has.
const mostExample = 500

func (r *statsReader) failing(ctx context.Context, tx querier, s *QueueStats, o StatsOptions) (err error) {
	if s.FailedDead, err = r.collectGroups(ctx, tx, r.most, Dead, o.Groups); err != nil {
		return err
	}
	s.FailedRetries, err = r.collectGroups(ctx, tx, r.most, Retrying, o.Groups)
	return err
}

// The newest ids are nearly those that were published last, and only they have an index.
const publishedSinceSQL = `
SELECT count(*), count(*) FILTER (WHERE n.published_at > (SELECT clock_timestamp()) - $2::interval)
FROM (SELECT r.published_at FROM {published} r ORDER BY {order} LIMIT $1) n`

// PublishedSince counts the messages of the history that were published within this time, among the newest MostCounted
// rows. kept is false if published messages are not kept.
func (t *Tables) PublishedSince(ctx context.Context, within time.Duration) (count Count, kept bool, err error) {
	if kept, err = t.HasHistory(ctx); err != nil || !kept {
		return Count{Precision: Unknown}, kept, err
	}
	const stop = MostCounted + 1
	var read, n int64
	err = t.glance(ctx, func(ctx context.Context, tx querier) error {
		sql := t.fill(publishedSinceSQL, "{order}", byPublication().order())
		return tx.QueryRow(ctx, sql, stop, within).Scan(&read, &n)
	})
	if err != nil {
		return Count{Precision: Unknown}, true, t.reading(ctx, history(), "count messages of", err)
	}
	if count = counted(n, stop); n < read { // an older row was read, too
		count.Precision = Exact
	}
	return count, true, nil
}
