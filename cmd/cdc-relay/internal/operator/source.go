package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// source is a table with messages.
type source struct {
	table string
	// own are its columns of rows r beside rowColumns, and locker: xmax, or '0' in a table whose rows nobody locks.
	own string
	// state is the state of a row r.
	state string
	// ends are the available_at, the failure_reason and the time of the end of a row r.
	ends string
	// born is the time from which the ages of filters count.
	born string
	// reasons are the codes of why a row failed, as an array.
	reasons string
}

func waiting(k Known) source { return sourceOf("", k) }

// sourceOf returns the table of the rows in a state; "": all rows of the outbox.
func sourceOf(s State, k Known) source {
	switch s {
	case Dead:
		return deadLetters()
	case Published:
		return history()
	}
	return source{
		table: "{outbox}", own: "r.available_at, r.xmax AS locker", state: k.stateSQL("r.locked_by", s),
		ends: "r.available_at, ''::text, NULL::timestamptz", born: "r.created_at",
		reasons: "ARRAY[" + errorCode("r.last_error") + "]",
	}
}

func deadLetters() source {
	return source{
		table: "{dead}", own: "r.failure_reason, r.dead_at, '0'::xid AS locker", state: "'dead'::text",
		ends: "NULL::timestamptz, " + shownText("r.failure_reason") + ", r.dead_at", born: "r.dead_at",
		reasons: "ARRAY[pg_catalog.left(r.failure_reason, 200), " + errorCode("r.last_error") + "]",
	}
}

func history() source {
	return source{
		table: "{published}", own: "r.published_at, '0'::xid AS locker", state: "'published'::text",
		ends: "NULL::timestamptz, ''::text, r.published_at", born: "r.published_at",
		reasons: "ARRAY[" + errorCode("r.last_error") + "]",
	}
}

// rowColumns are the columns that storedColumns and filters read, of rows r.
const rowColumns = `{kept_of_row}`

// withLocks begins a statement that asks who has locked rows, so that it reads the locks once.
const withLocks = `
WITH RECURSIVE locks AS MATERIALIZED (
  SELECT l.transactionid, l.pid FROM pg_catalog.pg_locks l
    WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted)`

// statedSQL adds locked_by, the process id of the session that has locked a row or 0, and the state. It does not try to
// lock the row, which would be a write.
const statedSQL = `
  SELECT r.*, {state} AS state FROM (
    SELECT r.*, CASE WHEN r.locker = '0' THEN 0 ELSE coalesce((
      SELECT l.pid FROM locks l WHERE l.transactionid = r.locker LIMIT 1), 0) END AS locked_by FROM (
      {rows}) r) r`

// stated returns a query with the state of each row of another one, whose columns are rowColumns and own.
func (s source) stated(rows string) string {
	return strings.NewReplacer("{rows}", rows, "{state}", s.state).Replace(statedSQL)
}

// columns are the columns for scanMessage.
func (s source) columns(payload bool) string {
	return storedColumns(payload) + ", r.locked_by, r.state, " + s.ends
}

// The columns are named, because an application may have others. The statement has the rows as found for mostOfNamed.
const foundSQL = withLocks + `, found AS MATERIALIZED (
  SELECT ` + rowColumns + `, {own} FROM {from} r WHERE {where} ORDER BY {order} LIMIT {limit})
SELECT {columns} FROM ({stated}) r ORDER BY {order}`

// found returns the statement for few rows.
func (s source) found(where, order string, limit int, payload bool) string {
	return strings.NewReplacer(
		"{columns}", s.columns(payload), "{own}", s.own, "{from}", s.table, "{where}", where, "{order}", order,
		"{limit}", fmt.Sprint(limit), "{stated}", s.stated("SELECT r.* FROM found r"),
	).Replace(foundSQL)
}

// within runs statements, such as glance and look.
type within func(context.Context, func(context.Context, querier) error) error

// read runs a statement that shows values of up to most bytes. If the server cannot give them all, in time or within
// its limits, the statement runs again with {most} as 0, which shows their sizes only.
func (t *Tables) read(
	ctx context.Context, in within, sql, most string, args []any, collect func(pgx.Rows) error,
) error {
	run := func(most string) error {
		return in(ctx, func(ctx context.Context, tx querier) error {
			rows, err := tx.Query(ctx, strings.ReplaceAll(t.fill(sql), "{most}", most), args...)
			if err != nil {
				return err
			}
			defer rows.Close()
			return collect(rows)
		})
	}
	err := run(most)
	if isTooMuch(err) {
		return run("0")
	}
	return err
}

// messages is read for messages.
func (t *Tables) messages(ctx context.Context, in within, sql, most string, args ...any) (all []Message, err error) {
	err = t.read(ctx, in, sql, most, args, func(rows pgx.Rows) (err error) {
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Message, error) { return scanMessage(row) })
		return err
	})
	return all, err
}

// ErrNoHistory is returned if published messages are not kept.
var ErrNoHistory = errors.New("published messages are not kept")

// HasHistory reports whether published messages are kept.
func (t *Tables) HasHistory(ctx context.Context) (has bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	err = t.conn.QueryRow(ctx, `SELECT pg_catalog.to_regclass($1) IS NOT NULL`, t.table.Published().SQL()).Scan(&has)
	return has, err
}

// reading completes the error of a command that reads messages. What is its verb, needs are its other privileges.
func (t *Tables) reading(ctx context.Context, from source, what string, err error, needs ...need) error {
	tables, needed := t.table, t.table.SQL()+", "+t.table.DeadLetter().SQL()
	switch {
	case err == nil || errors.Is(err, ErrCursor):
		return err
	case from.table == history().table:
		tables, needed = t.table.Published(), t.table.Published().SQL()
		if has, asked := t.HasHistory(ctx); asked == nil && !has {
			return &problem.Problem{
				What: fmt.Sprintf("table %s does not exist", tables),
				Fix:  problem.Command(t.table, "setup", "--keep-published", "168h"), Err: ErrNoHistory,
			}
		}
	}
	return t.may(ctx, fmt.Errorf("%s %s: %w", what, tables, err), append([]need{{"SELECT", needed}}, needs...)...)
}
