package load

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// transactionTimeout limits all statements of a transaction before its end, and then COMMIT or ROLLBACK separately. It
// ends a transaction if the server is frozen or cut off, or waits for a lock or a standby.
const transactionTimeout = 10 * time.Second

// Mistakes of an application; see planner.failing.
const (
	failDivision = "division"
	failBusiness = "business"
	failOutbox   = "outbox"
)

// executor runs planned transactions on one connection after the other.
type executor struct {
	run    string
	writer int
	table  outbox.Table
	record *history.Recorder
	// persist: a transaction is executed again until it has ended as planned. Only then its end is recorded.
	persist bool
}

// execute runs a transaction to its end and records it. After an error the connection cannot be used again.
//
// COMMIT is sent only after everything else has succeeded. So a failure before it leaves nothing behind: the server
// rolls back when it notices that the connection is gone.
func (e *executor) execute(ctx context.Context, conn *pgx.Conn, t *transaction) (history.Outcome, error) {
	ctx = context.WithoutCancel(ctx) // a transaction is completed even if the writers are to stop
	err := e.statements(ctx, conn, t)
	outcome := history.RolledBack
	switch {
	case t.told && pgcode.Is(err, pgerrcode.UniqueViolation):
		outcome = history.Committed // its business row is there: the COMMIT that was not answered succeeded
	case e.persist && err != nil:
		return outcome, err
	}
	if !t.told {
		e.record.Ending(e.told(t))
		t.told = true
	}
	if err == nil {
		outcome, err = e.finish(ctx, conn, t)
	}
	if t.ended = !e.persist || outcome == t.planned(); t.ended {
		e.record.Ended(t.id, outcome)
	}
	return outcome, err
}

func (e *executor) told(t *transaction) history.Transaction {
	told := history.Transaction{ID: t.id, Writer: e.writer, Messages: make([]history.Message, len(t.rows))}
	for i := range t.rows {
		told.Messages[i] = t.rows[i].Message
	}
	return told
}

// finish sends COMMIT or ROLLBACK.
func (e *executor) finish(ctx context.Context, conn *pgx.Conn, t *transaction) (history.Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	if t.end == endRollback || t.end == endError {
		_, err := conn.Exec(ctx, "ROLLBACK")
		return history.RolledBack, err
	}
	tag, err := conn.Exec(ctx, "COMMIT")
	switch {
	case err == nil && tag.String() == "COMMIT":
		return history.Committed, nil
	case err == nil:
		return history.RolledBack, nil // a statement had failed
	case refused(err):
		return history.RolledBack, err // the commit itself was rejected
	default:
		return history.Unknown, err
	}
}

// statements runs everything except the end.
func (e *executor) statements(ctx context.Context, conn *pgx.Conn, t *transaction) error {
	ctx, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
		return err
	}
	const business = `INSERT INTO soak_transaction (run, id) VALUES ($1, $2)`
	if _, err := conn.Exec(ctx, business, e.run, t.id); err != nil {
		return err
	}
	for _, s := range t.steps {
		if err := e.step(ctx, conn, t, s); err != nil {
			return err
		}
	}
	return nil
}

func (e *executor) step(ctx context.Context, conn *pgx.Conn, t *transaction, s step) (err error) {
	switch s.verb {
	case insertRow, insertRows:
		return e.insert(ctx, conn, t.rows[s.from:s.to])
	case copyRows:
		return e.copy(ctx, conn, t.rows[s.from:s.to])
	case savepoint:
		_, err = conn.Exec(ctx, "SAVEPOINT "+s.name)
	case rollbackTo:
		_, err = conn.Exec(ctx, "ROLLBACK TO SAVEPOINT "+s.name)
	case release:
		_, err = conn.Exec(ctx, "RELEASE SAVEPOINT "+s.name)
	case fail:
		return e.fail(ctx, conn, t, s.name)
	}
	return err
}

// fail runs a statement that the server must reject.
func (e *executor) fail(ctx context.Context, conn *pgx.Conn, t *transaction, how string) error {
	var err error
	switch how {
	case failDivision:
		_, err = conn.Exec(ctx, "SELECT 1 / 0")
	case failBusiness:
		_, err = conn.Exec(ctx, `INSERT INTO soak_transaction (run, id) VALUES ($1, $2)`, e.run, t.id)
	case failOutbox:
		_, err = conn.Exec(ctx, "INSERT INTO "+e.table.SQL()+` (payload) VALUES ('{}')`)
	}
	switch {
	case refused(err):
		return nil
	case err == nil:
		return fmt.Errorf("the server accepted the statement %q, which it must reject", how)
	default:
		return err
	}
}

// refused reports whether the server rejected a statement and the session continues. FATAL ends the session and says
// nothing about a COMMIT.
func refused(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && answer.SeverityUnlocalized == "ERROR"
}

// columns are the columns that the writers fill, with their types. A scheduled row is due after a number of
// milliseconds, by the database's clock.
func columns() [][2]string {
	return [][2]string{
		{"message_id", "$%d::uuid"},
		{"exchange", "$%d::text"},
		{"routing_key", "$%d::text"},
		{"ordering_key", "$%d::text"},
		{"payload", "$%d::json"},
		{"payload_bytes", "$%d::bytea"},
		{"headers", "$%d::jsonb"},
		{"properties", "$%d::jsonb"},
		{"available_at", "clock_timestamp() + $%d::float8 * interval '1 ms'"},
	}
}

func (e *executor) insert(ctx context.Context, conn *pgx.Conn, rows []row) error {
	var names, values []string
	var args []any
	for _, column := range columns() {
		names = append(names, column[0])
	}
	for i := range rows {
		var places []string
		for j, column := range columns() {
			places = append(places, strings.Replace(column[1], "%d", strconv.Itoa(len(args)+j+1), 1))
		}
		values = append(values, "("+strings.Join(places, ", ")+")")
		args = append(args, rows[i].fields()...)
	}
	sql := "INSERT INTO " + e.table.SQL() + " (" + strings.Join(names, ", ") + ") VALUES " + strings.Join(values, ", ")
	now := e.record.Now() // before the server reads its clock, so that a scheduled row is not due earlier than this
	for i := range rows {
		if rows[i].Kind == history.Scheduled {
			rows[i].NotBefore = now + rows[i].delay
		}
	}
	_, err := conn.Exec(ctx, sql, args...)
	return err
}

// copy omits available_at, the last column.
func (e *executor) copy(ctx context.Context, conn *pgx.Conn, rows []row) error {
	var names []string
	for _, column := range columns() {
		names = append(names, column[0])
	}
	last := len(names) - 1
	_, err := conn.CopyFrom(ctx, pgx.Identifier{e.table.Schema, e.table.Name}, names[:last],
		pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
			return rows[i].fields()[:last], nil
		}))
	return err
}

// fields are a row's values in the order of columns.
func (r *row) fields() []any {
	fields := make([]any, 9)
	fields[0], fields[2] = [16]byte(r.ID), r.routingKey
	if r.exchange != nil {
		fields[1] = *r.exchange
	}
	if r.Key != "" {
		fields[3] = r.Key
	}
	if r.Kind == history.Binary {
		fields[5] = r.body
	} else {
		fields[4] = r.body
	}
	if r.headers != "" {
		fields[6] = r.headers
	}
	if r.properties != "" {
		fields[7] = r.properties
	}
	if r.delay > 0 {
		fields[8] = float64(r.delay.Milliseconds())
	}
	return fields
}
