package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgtime"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// newest is a table that is read newest first: the dead letters or the history.
type newest struct {
	of   kind
	from string // the table
	// own are the table's columns, beside rowColumns, and shown is what a view reads of them. The last one is the time.
	own, shown string
	// order is that of an index, and the name of the list in cursors. after selects what follows a time %[1]s and an id
	// %[2]s.
	order, after string
	// scan reads storedColumns, own, and further columns.
	scan func(row pgx.CollectableRow, at *pgtype.Timestamptz, more ...any) (Message, error)
}

func deadLetters() newest {
	return newest{
		of:    ofDeadLetters,
		from:  "{dead}",
		own:   "r.failure_reason, r.dead_at",
		shown: shownText("r.failure_reason") + ", r.dead_at",
		order: "r.dead_at DESC, r.id DESC",
		after: "(r.dead_at, r.id) < (%[1]s::timestamptz, %[2]s)",
		scan: func(row pgx.CollectableRow, died *pgtype.Timestamptz, more ...any) (Message, error) {
			letter := Message{State: Dead}
			stored, err := scanStored(row, append([]any{&letter.Reason, died}, more...)...)
			letter.StoredMessage, letter.DeadAt = stored, pgtime.FromRequired(*died)
			return letter, err
		},
	}
}

func history() newest {
	return newest{
		of: ofPublished, from: "{published}", own: "r.published_at", shown: "r.published_at",
		order: "r.id DESC, r.published_at DESC", after: "(r.id, r.published_at) < (%[2]s, %[1]s::timestamptz)",
		scan: func(row pgx.CollectableRow, published *pgtype.Timestamptz, more ...any) (Message, error) {
			stored, err := scanStored(row, append([]any{published}, more...)...)
			return Message{StoredMessage: stored, State: Published, PublishedAt: pgtime.FromRequired(*published)}, err
		},
	}
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

// historyError completes the error of a command that reads the history. What is its verb, needs are its other
// privileges.
func (t *Tables) historyError(ctx context.Context, what string, err error, needs ...need) error {
	if err == nil || errors.Is(err, ErrCursor) {
		return err
	}
	if has, asked := t.HasHistory(ctx); asked == nil && !has {
		return &problem.Problem{
			What: fmt.Sprintf("table %s does not exist", t.table.Published()),
			Fix:  problem.Command(t.table, "setup", "--keep-published", "168h"), Err: ErrNoHistory,
		}
	}
	return t.may(ctx, fmt.Errorf("%s %s: %w", what, t.table.Published(), err),
		append([]need{{"SELECT", t.table.Published().SQL()}}, needs...)...)
}

// rowColumns are the columns that storedColumns and filters read, of rows r.
const rowColumns = `{kept_of_row}`

// A page, with the last row that was read.
const newestPageSQL = `
SELECT {columns}, {shown}, coalesce({where}, false), r.nth = {looked} FROM (
  SELECT ` + rowColumns + `, {own}, row_number() OVER (ORDER BY {order}) AS nth
  FROM {from} r WHERE {after} ORDER BY {order} LIMIT {looked}) r
WHERE ({where}) OR r.nth = {looked} ORDER BY {order} LIMIT {limit}`

const newestSQL = `
WITH found AS MATERIALIZED (SELECT ` + rowColumns + `, {own} FROM {from} r WHERE {where} ORDER BY {order} LIMIT {limit})
SELECT {columns}, {shown} FROM found r ORDER BY {order}`

// page reads a page of the rows that match the filter. A filter that names messages has one page.
func (n newest) page(ctx context.Context, t *Tables, filter Filter, page Page) (list Listing[Message], err error) {
	if len(filter.IDs)+len(filter.MessageIDs) > 0 {
		list.Rows, err = n.read(ctx, t, filter, page.Limit, mostListed(), page.Payload)
		return list, err
	}
	start, err := parseCursor(page.After, n.order)
	if err != nil {
		return list, err
	}
	where, args := filter.where(n.of, nil)
	after := conditions{args: args}
	if start != nil && start.At != nil {
		after.add(n.after, *start.At, start.ID)
	}
	sql := t.fill(newestPageSQL,
		"{columns}", storedColumns(page.Payload),
		"{own}", n.own,
		"{shown}", n.shown,
		"{from}", n.from,
		"{order}", n.order,
		"{where}", where,
		"{after}", after.String(),
		"{looked}", fmt.Sprint(MostLooked),
		"{limit}", fmt.Sprint(page.Limit+1))
	err = t.glanceAt(ctx, mostListed(), func(ctx context.Context, tx querier, most string) (err error) {
		sql := strings.ReplaceAll(sql, "{most}", most)
		list, err = collectPage(ctx, tx, sql, after.args, page.Limit, func(
			row pgx.CollectableRow,
		) (message Message, at place, err error) {
			var time pgtype.Timestamptz
			message, err = n.scan(row, &time, &at.matches, &at.last)
			at.cursor = cursor{List: n.order, At: timeText(time), ID: message.ID}
			return message, at, err
		})
		return err
	})
	return list, err
}

// read reads the rows that match the filter, with values of up to most bytes. It may read the whole table.
func (n newest) read(
	ctx context.Context, t *Tables, filter Filter, limit int, most string, payload bool,
) (messages []Message, err error) {
	where, args := filter.where(n.of, nil)
	sql := t.fill(newestSQL,
		"{columns}", storedColumns(payload),
		"{own}", n.own,
		"{shown}", n.shown,
		"{from}", n.from,
		"{order}", n.order,
		"{where}", where,
		"{limit}", fmt.Sprint(limit))
	err = showing(most, func(most string) error {
		return t.look(ctx, func(ctx context.Context, tx querier) error {
			rows, err := tx.Query(ctx, strings.ReplaceAll(sql, "{most}", most), args...)
			if err != nil {
				return err
			}
			messages, err = pgx.CollectRows(rows,
				func(row pgx.CollectableRow) (Message, error) { return n.scan(row, new(pgtype.Timestamptz)) })
			return err
		})
	})
	return messages, err
}
