package operator

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// newest is a table that is read newest first: the dead letters or the history.
type newest[M interface{ rowID() int64 }] struct {
	of   kind
	from string // the table
	// own are the table's columns, beside rowColumns, and shown is what a view reads of them. The last one is the time.
	own, shown string
	// order is that of an index, and the name of the list in cursors. after selects what follows a time %[1]s and an id
	// %[2]s.
	order, after string
	// scan reads storedColumns, own, and further columns.
	scan func(row pgx.CollectableRow, at *pgtype.Timestamptz, more ...any) (M, error)
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

// page reads a page of the rows that match the filter, without payloads. A filter that names messages has one page.
func (n newest[M]) page(ctx context.Context, t *Tables, filter Filter, page Page) (list Listing[M], err error) {
	if len(filter.IDs)+len(filter.MessageIDs) > 0 {
		list.Rows, err = n.read(ctx, t, filter, page.Limit, mostListed(), false)
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
		"{columns}", storedColumns(false),
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
		) (message M, at place, err error) {
			var time pgtype.Timestamptz
			message, err = n.scan(row, &time, &at.matches, &at.last)
			at.cursor = cursor{List: n.order, At: timeText(time), ID: message.rowID()}
			return message, at, err
		})
		return err
	})
	return list, err
}

// read reads the rows that match the filter, with values of up to most bytes. It may read the whole table.
func (n newest[M]) read(
	ctx context.Context, t *Tables, filter Filter, limit int, most string, payload bool,
) (messages []M, err error) {
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
				func(row pgx.CollectableRow) (M, error) { return n.scan(row, new(pgtype.Timestamptz)) })
			return err
		})
	})
	return messages, err
}
