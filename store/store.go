// Package store owns every statement on the outbox tables. It knows nothing of
// AMQP or of LSNs but their text. All times are the database's.
package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Store runs the relay's statements on a small pool. It is safe for concurrent
// use; the caller of Open closes it.
type Store struct {
	pool    *pgxpool.Pool
	sockets *sockets
	table   outbox.Table
	sql     statements
	// plain are the statements without a history, for what was not published; withHistory those of KeepPublished.
	plain       statements
	withHistory func() statements
	keeps       bool
	// lock is the statement that locks rows, headers the columns that it reads for headers.
	lock    string
	headers []string
	// extras are columns of the application.
	extras extras
	// statementTimeout bounds each call: a connection that a dead server left open,
	// or a lock that somebody holds, must not hold up the relay for ever.
	statementTimeout time.Duration
	// servers knows which server the connections were opened to.
	servers *servers
}

const (
	connections      = 7 // three claims, settle, sweep, and two to spare for checks
	statementTimeout = 30 * time.Second
)

// sessionSettings are what the statements need; they override those of role and database.
// Under a stricter isolation level a settlement that had to wait for a row would
// fail. And no plan shall read the whole table: the statistics of a queue are always
// old, and a plan made while it was empty is kept when it is not (docs/architecture.md,
// invariant 12). Who waits for a lock says so soon, and lets others pass. A role that is read-only by default may write.
const sessionSettings = `
SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off;
SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
SET jit = off; SET lock_timeout = '1s'; SET idle_in_transaction_session_timeout = '10s'`

// failIfHidden has statements fail where row-level security would hide rows from them: a hidden row looks deleted, and
// would be published again, unmarked, once it shows.
const failIfHidden = `; SET row_security = off`

// Open prepares a store. It does not connect: the first statement does. With
// block, keys that have a dead letter are held up. The sweeps take rows of the shard alone.
func Open(databaseURL string, table outbox.Table, block bool, shard outbox.Shard) (*Store, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	config.ConnConfig.RuntimeParams["client_encoding"] = "UTF8"
	config.ConnConfig.RuntimeParams["application_name"] = "cdc-relay"
	pgdial.Limit(&config.ConnConfig.Config)
	pgdial.AsWriter(&config.ConnConfig.Config)
	servers := &servers{}
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, sessionSettings+failIfHidden); err != nil {
			return err
		}
		return servers.opened(ctx, conn)
	}
	// A sweep comes each second: to ask each time whether the connection lives would double what an idle
	// relay asks. What fails is tried again anyway.
	config.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > pingAfter }
	open := newSockets(config.ConnConfig.DialFunc)
	config.ConnConfig.DialFunc = open.dial
	s := &Store{sockets: open, servers: servers, table: table, sql: newStatements(table, block, shard, false), statementTimeout: statementTimeout}
	s.plain = s.sql
	s.withHistory = func() statements { return newStatements(table, block, shard, true) }
	s.SendHeaders(nil)
	if s.pool, err = pgxpool.NewWithConfig(context.Background(), config); err != nil {
		return nil, err
	}
	return s, nil
}

// KeepPublished has published rows moved to the history. It is called before any other method.
func (s *Store) KeepPublished() { s.sql, s.keeps = s.withHistory(), true }

// Restarts counts how often a connection was opened to a server that is not the one of the connection before: it was
// restarted, has recovered from a crash, or another one has taken its place.
func (s *Store) Restarts() int64 { return s.servers.restarts.Load() }

// pingAfter is how long a connection may have been idle to be used without asking the server first.
const pingAfter = 5 * time.Second

// closeGrace is how long a server has for a goodbye.
const closeGrace = 100 * time.Millisecond

// Close ends the connections, the hard way where the server does not answer: the pool
// alone would wait 15 seconds for it. Statements still running fail.
func (s *Store) Close() {
	impatient := time.AfterFunc(closeGrace, s.sockets.closeAll)
	defer impatient.Stop()
	s.pool.Close()
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

// SlotOwner is which server process owns a slot, when the database said so by its clock, and a time before by this process's.
type SlotOwner struct {
	PID            uint32
	Asked, Answers time.Time
}

// SlotOwner asks for it.
func (s *Store) SlotOwner(ctx context.Context, name string) (o SlotOwner, err error) {
	err = s.Conn(ctx, func(conn *pgx.Conn) error {
		o.Asked = time.Now()
		return conn.QueryRow(ctx, `SELECT `+slot.OwnerSQL+`, clock_timestamp()`, name).Scan(&o.PID, &o.Answers)
	})
	if err != nil {
		return SlotOwner{}, fmt.Errorf("read slot %s: %w", name, err)
	}
	return o, nil
}

// GreatestID is that of the table's rows, 0 where there is none above. A row may have one that its
// sequence has not handed out: copied, inserted by hand, or since the sequence was restarted.
func (s *Store) GreatestID(ctx context.Context) (id int64, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if err := s.pool.QueryRow(ctx, `SELECT coalesce(max(id), 0) FROM `+s.table.SQL()).Scan(&id); err != nil {
		return 0, fmt.Errorf("read the greatest id of %s: %w", s.table, err)
	}
	return id, nil
}

// LastID is the newest id that was handed out, also to transactions that are still
// open: no row that is inserted from now on has it or a smaller one. Where the
// table has no sequence, ok is false.
func (s *Store) LastID(ctx context.Context) (id int64, ok bool, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var last pgtype.Int8
	err = s.pool.QueryRow(ctx, `
SELECT pg_sequence_last_value(s.oid) FROM pg_get_serial_sequence($1, 'id') name
JOIN pg_catalog.pg_class s ON s.oid = name::regclass`, s.table.SQL()).Scan(&last)
	switch {
	case err == pgx.ErrNoRows:
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("read the newest id of %s: %w", s.table, err)
	}
	return last.Int64, true, nil // null: none was handed out yet
}
