package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Operator is what a person on call does with the tables, over one connection. It is
// not safe for concurrent use; whoever opened the connection closes it.
type Operator struct {
	conn  *pgx.Conn
	table outbox.Table
	names []string // what stands for them in statements, and they
}

const (
	// glanceTimeout bounds what is to be cheap on the server. What takes longer is left out
	// of the answer: a table full of dead rows must not make a look at it expensive.
	glanceTimeout = time.Second
	// lookTimeout bounds a look that may read a whole table.
	lookTimeout = 15 * time.Minute
	// batchTimeout bounds one batch of changes.
	batchTimeout = time.Minute
)

// NewOperator takes the connection over and sets it up.
func NewOperator(ctx context.Context, conn *pgx.Conn, table outbox.Table) (*Operator, error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	_, err := conn.Exec(ctx, sessionSettings+"; SET lock_timeout = '10s'")
	if err != nil {
		return nil, fmt.Errorf("set the connection up: %w", err)
	}
	return &Operator{conn: conn, table: table, names: []string{
		"{outbox}", table.SQL(), "{dead}", table.DeadLetter().SQL(),
		"{version}", fmt.Sprint(outbox.SchemaVersion), "{kept}", keptNames,
	}}, nil
}

// fill puts the names of the tables into a statement, and what else is given in pairs.
func (o *Operator) fill(sql string, more ...string) string {
	return strings.NewReplacer(o.names...).Replace(strings.NewReplacer(more...).Replace(sql))
}

// mayScan lifts what sessionSettings forbid, for the transaction.
const mayScan = `SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on`

// glance runs f in a transaction that changes nothing, plans no scan of a whole table, and in
// which no statement takes longer than glanceTimeout. Without hurry it may, and may scan.
func (o *Operator) glance(ctx context.Context, hurry bool, f func(context.Context, pgx.Tx) error) error {
	timeout, settings := lookTimeout, mayScan
	if hurry {
		timeout = 4 * glanceTimeout
		settings = fmt.Sprintf("SET LOCAL statement_timeout = %d; SET LOCAL enable_bitmapscan = off", glanceTimeout.Milliseconds())
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return pgx.BeginTxFunc(ctx, o.conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, settings); err != nil {
			return err
		}
		return f(ctx, tx)
	})
}

func hasCode(err error, code string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == code
}

// may says what lacks where a statement was refused: a table, a column or a privilege. The
// privileges are those that the command needs, by table.
func (o *Operator) may(ctx context.Context, err error, needs ...need) error {
	switch {
	case hasCode(err, "42P01"):
		return &problem.Problem{What: fmt.Sprintf("table %s is not there", o.table), Fix: "cdc-relay setup", Err: err}
	case hasCode(err, "42703"):
		return &problem.Problem{What: fmt.Sprintf("table %s lacks a column", o.table), Fix: "cdc-relay migrate up", Err: err}
	case !hasCode(err, "42501"):
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

// need is what a command does with a table.
type need struct{ privileges, on string }

func (o *Operator) reads() []need {
	return []need{{"SELECT", o.table.SQL() + ", " + o.table.DeadLetter().SQL()}}
}
