// Package operator answers what people ask about the messages of an outbox, and changes rows for them. The commands and
// the console use it, the relay does not.
package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// Tables are the tables of an outbox, for a person who asks about messages and changes them. All calls use one
// connection, so it is not safe for concurrent use; the caller closes it with Close. All times are on the database's
// clock.
type Tables struct {
	conn  *pgx.Conn
	table outbox.Table
	owner []string // may own the tables, besides those that migrations.CheckOwners trusts
	names []string // placeholders of statements and their values, in pairs
}

const (
	// glanceTimeout bounds a cheap statement. The answer leaves out what takes longer: a table full of dead rows must
	// not make a look expensive.
	glanceTimeout = time.Second
	// hurriedTimeout is the timeout after another statement was too slow.
	hurriedTimeout = 250 * time.Millisecond
	// lookTimeout bounds a look that may read a whole table.
	lookTimeout = 15 * time.Minute
	// batchTimeout bounds one batch of changes.
	batchTimeout = time.Minute
)

// ChangeBatch is how many rows the commands and the console change in one transaction.
const ChangeBatch = 1000

// New configures the session of the connection. If it fails, the caller closes the connection. Owner is that of
// migrations.CheckOwners.
func New(ctx context.Context, conn *pgx.Conn, table outbox.Table, owner ...string) (*Tables, error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	if err := migrations.CheckTables(ctx, conn, table, owner...); err != nil {
		return nil, err
	}
	_, err := conn.Exec(ctx, store.SessionSettings+"; SET lock_timeout = '10s'")
	if err != nil {
		return nil, fmt.Errorf("set the connection up: %w", err)
	}
	return &Tables{conn: conn, table: table, owner: owner, names: []string{
		"{outbox}", table.SQL(), "{dead}", table.DeadLetter().SQL(), "{published}", table.Published().SQL(),
		"{version}", fmt.Sprint(outbox.SchemaVersion), "{copied}", schema.List(schema.Copied(), ""),
		"{copied_of_row}", schema.List(schema.Copied(), "r."), "{kept_of_row}", schema.List(schema.Kept(), "r."),
	}}, nil
}

// Close closes the connection within two seconds, also if ctx is done.
func (t *Tables) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	t.conn.Close(ctx) //nolint:errcheck // the server notices the end of the connection in any case
}

// Closed reports whether the connection is closed, by Close or because it broke.
func (t *Tables) Closed() bool { return t.conn.IsClosed() }

// fill replaces the names of the tables in a statement, and further pairs.
func (t *Tables) fill(sql string, more ...string) string {
	return strings.NewReplacer(t.names...).Replace(strings.NewReplacer(more...).Replace(sql))
}

// mayScan lifts the limits of store.SessionSettings and of the role, for one transaction.
const mayScan = `SET LOCAL statement_timeout = 0; SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on;
  SET LOCAL enable_mergejoin = on`

// look runs f in a read-only transaction. It may read a whole table.
func (t *Tables) look(ctx context.Context, f func(context.Context, querier) error) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return pgx.BeginTxFunc(ctx, t.conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, mayScan); err != nil {
			return err
		}
		return f(ctx, tx)
	})
}

// glance runs f with statements that are read-only, cheap and at most glanceTimeout long. It is not a transaction, so
// that a statement that times out does not fail the others, and to save round trips.
func (t *Tables) glance(ctx context.Context, f func(context.Context, querier) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*glanceTimeout)
	defer cancel()
	_, err := t.conn.Exec(ctx,
		fmt.Sprintf("SET statement_timeout = %d; SET enable_bitmapscan = off; SET default_transaction_read_only = on",
			glanceTimeout.Milliseconds()))
	if err != nil {
		return err
	}
	err = f(ctx, t.conn)
	_, reset := t.conn.Exec(ctx,
		"RESET statement_timeout; RESET enable_bitmapscan; SET default_transaction_read_only = off")
	return errors.Join(err, reset)
}

// Slot reads a replication slot. It reads no table, and an error fails the whole page, so a busy server gets more time
// than for a glance.
func (t *Tables) Slot(ctx context.Context, name string) (slot.Slot, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*glanceTimeout)
	defer cancel()
	return slot.Read(ctx, t.conn.PgConn(), name)
}

// IdleSlots returns the slots that nobody uses and that retain much WAL, except some. Those that retain most come
// first.
func (t *Tables) IdleSlots(ctx context.Context, except func(name string) bool) (idle []slot.Slot, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*glanceTimeout)
	defer cancel()
	all, err := slot.List(ctx, t.conn.PgConn())
	for _, other := range slot.Others(all, except) {
		if other.Abandoned() && len(idle) < mostIdle {
			idle = append(idle, other)
		}
	}
	return idle, err
}

// mostIdle is how many slots of others a view shows.
const mostIdle = 3

// querier is a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// hurry shortens the timeout of a glance after a statement that took too long.
func hurry(ctx context.Context, db querier) error {
	_, err := db.Exec(ctx, fmt.Sprintf("SET statement_timeout = %d", hurriedTimeout.Milliseconds()))
	return err
}

// may turns a missing table, column or privilege into a problem. Needs are the privileges of the command.
func (t *Tables) may(ctx context.Context, err error, needs ...need) error {
	switch {
	case pgcode.Is(err, pgerrcode.UndefinedTable):
		return schema.Use{Table: t.table}.Missing(ctx, t.conn, t.missing(ctx), t.conn.Config().Database)
	case pgcode.Is(err, pgerrcode.UndefinedColumn):
		for _, of := range []outbox.Table{t.table, t.table.DeadLetter(), t.table.Published()} {
			if found := migrations.CheckColumns(ctx, t.conn, t.table, of); problem.Is(found) {
				return found
			}
		}
		return err
	case !pgcode.Is(err, pgerrcode.InsufficientPrivilege):
		return schema.ExplainType(t.table, err)
	}
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	var role string
	if asked := t.conn.QueryRow(ctx, `SELECT current_user::text`).Scan(&role); asked != nil {
		return err
	}
	fix, to := problem.Grant(err, role), outbox.Identifier(role)
	if fix == "" { // no object of the catalog
		fix = fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;", outbox.QuoteIdentifier(t.table.Schema), to)
		for _, n := range needs {
			fix += fmt.Sprintf(" GRANT %s ON %s TO %s;", n.privileges, n.on, to)
		}
	}
	return &problem.Problem{What: "role " + to + " lacks a privilege", Fix: fix, Err: err}
}

// missing returns the table that does not exist.
func (t *Tables) missing(ctx context.Context) outbox.Table {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	var here bool
	err := t.conn.QueryRow(ctx, `SELECT pg_catalog.to_regclass($1) IS NOT NULL`, t.table.SQL()).Scan(&here)
	if err == nil && here {
		return t.table.DeadLetter()
	}
	return t.table
}

// need is the privileges that a command needs on a table.
type need struct{ privileges, on string }
