package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Sample is the state of the queue, at a cost that does not grow with the queue. Values that are not cheap to read are
// invalid (NULL).
type Sample struct {
	// Rows counts the rows of the outbox, DeadLetters those of the dead-letter table: exact up to SampleExact,
	// estimated above.
	Rows, DeadLetters pgtype.Int8
	// NewerVersion counts rows that need a newer relay, among the oldest SampleExact rows.
	NewerVersion pgtype.Int8
	// OldestPending is for how long the oldest ready row has waited, in seconds on the database's clock: since its
	// time, if it has one. 0: no row waits.
	OldestPending pgtype.Float8
	// WALRemoved: the server removes WAL that the slot needs.
	WALRemoved bool
	// SlotLag is the WAL that the slot's reader has not confirmed, SlotRetained the WAL that the server keeps for the
	// slot; both in bytes.
	SlotLag, SlotRetained pgtype.Int8
}

// SampleExact is up to how many rows are counted.
const SampleExact = 10_000

// sampleTimeout bounds each query of a sample: among millions of dead rows, even finding the first row takes long.
const sampleTimeout = 500 * time.Millisecond

// depthSQL counts the rows of a table up to a limit, and estimates above it.
const depthSQL = `
SELECT CASE WHEN counted.n <= {exact} THEN counted.n ELSE greatest(counted.n, estimated.n) END
FROM (SELECT count(*) AS n FROM (SELECT FROM {rows} LIMIT {exact} + 1) r) counted, (` + estimateSQL + `) estimated`

// The statistics follow each insert and delete within a second. A crash empties them; then the size of the table is a
// better estimate.
const estimateSQL = `
SELECT coalesce(nullif(pg_catalog.pg_stat_get_live_tuples(c.oid), 0), CASE WHEN c.relpages > 0
       THEN (c.reltuples::float8 / c.relpages::float8
         * (pg_catalog.pg_relation_size(c.oid) / pg_catalog.current_setting('block_size')::integer)::float8)::bigint
       ELSE 0 END) AS n
FROM pg_catalog.pg_class c WHERE c.oid = $1::text::regclass::oid`

// oldestSQL reads rows without a time, among the first ten thousand rows of the table, and due rows.
const oldestSQL = `
SELECT coalesce(greatest(extract(epoch FROM clock_timestamp() - least(
  (SELECT r.created_at FROM (SELECT id, created_at, available_at FROM {rows} ORDER BY id LIMIT {exact}) r
   WHERE r.available_at IS NULL AND pg_catalog.isfinite(r.created_at) AND r.id <> ALL($1::bigint[]) LIMIT 1),
  (SELECT pg_catalog.min(greatest(r.created_at, r.available_at)) FROM (
    SELECT id, created_at, available_at FROM {rows} WHERE available_at <= (SELECT clock_timestamp())
    ORDER BY available_at LIMIT 100) r WHERE pg_catalog.isfinite(r.created_at) AND r.id <> ALL($1::bigint[])
  )))::float8, 0), 0)`

const newerRowsSQL = `
SELECT count(*) FROM (SELECT schema_version FROM {rows} ORDER BY id LIMIT {exact}) r WHERE r.schema_version > {version}`

// Sample reads the state of queue and slot. Published are ids of rows that were published and cannot be deleted: they
// do not wait. It uses one connection for at most three seconds, and locks nothing.
func (s *Store) Sample(ctx context.Context, slotName string, published []int64) (Sample, error) {
	var sample Sample
	ctx, cancel := context.WithTimeout(ctx, 5*sampleTimeout)
	defer cancel()
	err := s.Conn(ctx, func(conn *pgx.Conn) error {
		limit := strconv.FormatInt(sampleTimeout.Milliseconds(), 10)
		if _, err := conn.Exec(ctx, "SET statement_timeout = "+limit); err != nil {
			return err
		}
		err := sample.read(ctx, conn, s.table, slotName, append([]int64{}, published...))
		return errors.Join(err, resetTimeout(ctx, conn))
	})
	if err != nil {
		return Sample{}, fmt.Errorf("sample %s: %w", s.table, err)
	}
	return sample, nil
}

// resetTimeout resets the connection, or closes it.
func resetTimeout(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SET statement_timeout = 0")
	if err != nil {
		_ = conn.Close(ctx)
	}
	return err
}

func (sample *Sample) read(
	ctx context.Context, conn *pgx.Conn, table outbox.Table, name string, published []int64,
) error {
	err := errors.Join(
		readDepth(ctx, conn, table, &sample.Rows),
		readDepth(ctx, conn, table.DeadLetter(), &sample.DeadLetters))
	if err != nil {
		return err
	}
	err = conn.QueryRow(ctx, sampling(oldestSQL, table), published).Scan(&sample.OldestPending)
	if err != nil && !isQueryCanceled(err) {
		return err
	}
	err = conn.QueryRow(ctx, sampling(newerRowsSQL, table)).Scan(&sample.NewerVersion)
	if err != nil && !isQueryCanceled(err) {
		return err
	}
	seen, err := slot.Read(ctx, conn.PgConn(), name)
	if seen.Here { // a polling relay has no slot
		sample.SlotLag = pgtype.Int8{Int64: max(seen.LagBytes, 0), Valid: seen.Confirmed != 0}
		sample.WALRemoved = seen.WALStatus == "unreserved" || seen.Lost()
		sample.SlotRetained = pgtype.Int8{Int64: seen.RetainedBytes, Valid: true}
	}
	if isQueryCanceled(err) {
		return nil
	}
	return err
}

func readDepth(ctx context.Context, conn *pgx.Conn, table outbox.Table, into *pgtype.Int8) error {
	err := conn.QueryRow(ctx, sampling(depthSQL, table), table.SQL()).Scan(into)
	if isQueryCanceled(err) {
		err = conn.QueryRow(ctx, estimateSQL, table.SQL()).Scan(into)
	}
	return err
}

func sampling(sql string, table outbox.Table) string {
	return strings.NewReplacer("{rows}", table.SQL(), "{exact}", strconv.Itoa(SampleExact),
		"{version}", strconv.Itoa(outbox.SchemaVersion)).Replace(sql)
}

// isQueryCanceled reports whether statement_timeout ended the statement.
func isQueryCanceled(err error) bool { return pgcode.Is(err, pgerrcode.QueryCanceled) }
