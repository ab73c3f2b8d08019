package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Operator runs the commands of a person on call, over one connection. It is not safe for concurrent use; the caller
// closes the connection.
type Operator struct {
	conn  *pgx.Conn
	table outbox.Table
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

// NewOperator configures the session of the connection. The caller still closes the connection.
func NewOperator(ctx context.Context, conn *pgx.Conn, table outbox.Table) (*Operator, error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	_, err := conn.Exec(ctx, sessionSettings+"; SET lock_timeout = '10s'")
	if err != nil {
		return nil, fmt.Errorf("set the connection up: %w", err)
	}
	return &Operator{conn: conn, table: table, names: []string{
		"{outbox}", table.SQL(), "{dead}", table.DeadLetter().SQL(), "{published}", table.Published().SQL(),
		"{version}", fmt.Sprint(outbox.SchemaVersion), "{kept}", keptNames,
	}}, nil
}

// fill replaces the names of the tables in a statement, and further pairs.
func (o *Operator) fill(sql string, more ...string) string {
	return strings.NewReplacer(o.names...).Replace(strings.NewReplacer(more...).Replace(sql))
}

// mayScan lifts the limits of sessionSettings and of the role, for one transaction.
const mayScan = `SET LOCAL statement_timeout = 0; SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on`

// look runs f in a read-only transaction. It may read a whole table.
func (o *Operator) look(ctx context.Context, f func(context.Context, querier) error) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return pgx.BeginTxFunc(ctx, o.conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, mayScan); err != nil {
			return err
		}
		return f(ctx, tx)
	})
}

// glance runs f with statements that are read-only, cheap and at most glanceTimeout long. It is not a transaction, so
// that a statement that times out does not fail the others, and to save round trips.
func (o *Operator) glance(ctx context.Context, f func(context.Context, querier) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*glanceTimeout)
	defer cancel()
	_, err := o.conn.Exec(ctx, fmt.Sprintf("SET statement_timeout = %d; SET enable_bitmapscan = off; SET default_transaction_read_only = on",
		glanceTimeout.Milliseconds()))
	if err != nil {
		return err
	}
	err = f(ctx, o.conn)
	_, reset := o.conn.Exec(ctx, "RESET statement_timeout; RESET enable_bitmapscan; SET default_transaction_read_only = off")
	return errors.Join(err, reset)
}

// Slot reads a replication slot.
func (o *Operator) Slot(ctx context.Context, name string) (s slot.Slot, err error) {
	err = o.glance(ctx, func(ctx context.Context, _ querier) error {
		s, err = slot.Read(ctx, o.conn.PgConn(), name)
		return err
	})
	return s, err
}

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
func (o *Operator) may(ctx context.Context, err error, needs ...need) error {
	switch {
	case pgcode.Is(err, pgcode.UndefinedTable):
		return &problem.Problem{What: fmt.Sprintf("table %s is not there", o.table), Fix: o.table.Command("setup"), Err: err}
	case pgcode.Is(err, pgcode.UndefinedColumn):
		return &problem.Problem{What: fmt.Sprintf("table %s lacks a column", o.table), Fix: o.table.Command("migrate up"), Err: err}
	case !pgcode.Is(err, pgcode.InsufficientPrivilege):
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	var role string
	if asked := o.conn.QueryRow(ctx, `SELECT quote_ident(current_user)`).Scan(&role); asked != nil {
		return err
	}
	grants := []string{fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", outbox.QuoteIdentifier(o.table.Schema), role)}
	for _, n := range needs {
		grants = append(grants, fmt.Sprintf("GRANT %s ON %s TO %s", n.privileges, n.on, role))
	}
	return &problem.Problem{What: "role " + role + " lacks a privilege", Fix: strings.Join(grants, "; "), Err: err}
}

// need is the privileges that a command needs on a table.
type need struct{ privileges, on string }

func (o *Operator) reads() []need {
	return []need{{"SELECT", o.table.SQL() + ", " + o.table.DeadLetter().SQL()}}
}
