// Package store owns the statements of the relay on the outbox tables. It does not know AMQP, nor the replication
// protocol. All times are on the database's clock.
package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/rawnet"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Store runs the relay's statements on a small pool. It is safe for concurrent use; the caller of Open must close it.
type Store struct {
	pool  *pgxpool.Pool
	table outbox.Table
	shard outbox.Shard
	// keep: deletes move published rows to the history, for this long; 0: there is none.
	keep time.Duration
	// headers are the columns that sweeps read as headers.
	headers []string
	sql     statements
	// extras are application columns.
	extras extras
	// statementTimeout bounds each call, so that a dead connection or a lock cannot block the relay for ever.
	statementTimeout time.Duration
	// servers detects whether connections go to a restarted server.
	servers *servers
}

const (
	connections      = 5 // settle, sweep, large bodies, and two for checks
	statementTimeout = 30 * time.Second
)

// SessionSettings are the SQL that overrides the settings of role and database, for sessions on the tables.
// Stricter isolation levels would fail a settlement that has waited for a row. Scans and joins of whole tables are off
// (CONTRIBUTING.md, invariant 12): statistics of a queue are always old, and a plan for an empty table is kept
// when the table is full. A short lock_timeout lets other rows pass. A role may be read-only by default.
const SessionSettings = `
SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off;
SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
SET jit = off; SET statement_timeout = 0; SET lock_timeout = '1s'; SET idle_in_transaction_session_timeout = '10s'`

// failIfHidden makes statements fail if row-level security would hide rows. A hidden row looks deleted, and would be
// published again, unmarked, when it becomes visible.
const failIfHidden = `; SET row_security = off`

// Options say which rows a store reads, and what becomes of them.
type Options struct {
	Table outbox.Table
	// Block: dead letters block their keys.
	Block bool
	// Shard is the part of the table that sweeps read; the zero value is the whole table.
	Shard outbox.Shard
	// KeepPublished moves published rows to the history instead of deleting them, for this long; 0: there is none.
	KeepPublished time.Duration
	// HeaderColumns are application columns that are sent as headers.
	HeaderColumns []string
}

// Open returns a store that connects with its first statement. It reads the address again for each connection.
func Open(address pgdial.Address, options Options) (*Store, error) {
	text, err := address.Valid()
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	config.BeforeConnect = func(_ context.Context, to *pgx.ConnConfig) error {
		now, err := address.Config()
		if err != nil {
			return fmt.Errorf("read the address of Postgres: %w", err)
		}
		now.RuntimeParams["application_name"] = "cdc-relay worker"
		pgdial.Limit(now)
		pgdial.AsUTF8(now)
		pgdial.CatalogFirst(now)
		pgdial.AsWriter(now)
		now.DialFunc = rawnet.Dial(now.DialFunc)
		to.Config = *now
		return nil
	}
	servers := &servers{}
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, SessionSettings+failIfHidden); err != nil {
			return err
		}
		return servers.opened(ctx, conn)
	}
	// Do not ping before each sweep: that would double the statements of an idle relay. Failed statements are retried
	// anyway.
	config.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > pingAfter }
	s := &Store{
		servers: servers, statementTimeout: statementTimeout,
		table: options.Table, shard: options.Shard, keep: options.KeepPublished, headers: options.HeaderColumns,
		sql: newStatements(options),
	}
	if s.pool, err = pgxpool.NewWithConfig(context.Background(), config); err != nil {
		return nil, err
	}
	return s, nil
}

// Check returns a *problem.Problem if the server is too old, or a table, a column or a privilege is missing. Any other
// error means that the database did not answer.
func (s *Store) Check(ctx context.Context) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	server := func(conn *pgx.Conn) error {
		if conn.PgConn().ParameterStatus("in_hot_standby") == "on" {
			return problem.Standby{}
		}
		return pgdial.CheckVersion(pgdial.Version(conn.PgConn()))
	}
	if err := s.Conn(ctx, server); err != nil {
		return err
	}
	return s.use().Check(ctx, s.pool)
}

// Explain is that of schema.Use. The role of the sessions may have been revoked, and another one be in the file of the
// address: new sessions read it again.
func (s *Store) Explain(ctx context.Context, err error) (explained error, gone bool) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if pgcode.Is(err, pgerrcode.InsufficientPrivilege, pgerrcode.UndefinedObject) { // the role was dropped
		s.pool.Reset()
	}
	return s.use().Explain(ctx, s.pool, err)
}

func (s *Store) use() schema.Use {
	return schema.Use{Table: s.table, Headers: s.headers, History: s.keep}
}

// Restarts counts new connections to another server than before: it was restarted, has recovered from a crash, or was
// replaced. So it is the number of the current server.
func (s *Store) Restarts() int64 { return s.servers.restarts.Load() }

// pingAfter is how long a connection may be idle and still be used without a ping.
const pingAfter = 5 * time.Second

// closeGrace is how long Close waits for the server.
const closeGrace = 100 * time.Millisecond

// Close closes the connections. The pool would wait 15 seconds for a server that does not answer: it does so in the
// background.
func (s *Store) Close() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(closeGrace):
	}
}

// Conn runs f on a connection of the pool.
func (s *Store) Conn(ctx context.Context, f func(*pgx.Conn) error) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return f(conn.Conn())
}

func (s *Store) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.statementTimeout)
}

// ask runs a statement that returns one row. What is the start of its error.
func (s *Store) ask(ctx context.Context, what, sql string, args []any, into ...any) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if err := s.pool.QueryRow(ctx, sql, args...).Scan(into...); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// exec runs a statement and counts its rows. What is that of ask.
func (s *Store) exec(ctx context.Context, what, sql string, args ...any) (int64, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	tag, err := s.pool.Exec(ctx, sql, args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	return tag.RowsAffected(), nil
}

// lastIDSQL reads the sequence and the greatest id above it. Normally no row is there, so that the index answers at
// once, also if an old transaction keeps millions of dead rows.
const lastIDSQL = `
SELECT s.last, (SELECT r.id FROM {outbox} r WHERE r.id > s.last ORDER BY r.id DESC LIMIT 1)
FROM (SELECT coalesce(pg_catalog.pg_sequence_last_value(c.oid), 0) AS last
      FROM pg_catalog.pg_get_serial_sequence($1, 'id') name JOIN pg_catalog.pg_class c ON c.oid = name::regclass::oid
      WHERE pg_catalog.has_sequence_privilege(c.oid, 'SELECT, USAGE') OFFSET 0) s`

// lastIDWait bounds the search for the greatest id: a new leader must not wait for a lock or for dead rows.
const lastIDWait = time.Second

// LastID returns the greatest id so far: of the rows, and of the sequence, which counts ids of open transactions too.
// An application may set ids, and a copied table leaves its sequence behind. Ok is false if the id is unknown: the
// table has no sequence that the role may read, or the answer took too long. 0: there was no row.
func (s *Store) LastID(ctx context.Context) (id int64, ok bool, err error) {
	short, cancel := context.WithTimeout(ctx, min(lastIDWait, s.statementTimeout))
	defer cancel()
	var last, greatest pgtype.Int8
	err = s.pool.QueryRow(short, s.sql.lastID, s.table.SQL()).Scan(&last, &greatest)
	tookTooLong := pgcode.Is(err, pgerrcode.LockNotAvailable, pgerrcode.QueryCanceled) ||
		err != nil && short.Err() != nil && ctx.Err() == nil
	switch {
	case err == pgx.ErrNoRows, tookTooLong:
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("read the newest id of %s: %w", s.table, err)
	}
	if greatest.Valid {
		return greatest.Int64, true, nil
	}
	return last.Int64, true, nil
}
