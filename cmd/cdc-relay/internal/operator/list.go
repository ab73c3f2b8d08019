package operator

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// A page of rows in the order of an index, with the last row that was read. The columns are named, because an
// application may have others. The ordered part is a subquery, because a CTE would be read to its end.
const listWaitingSQL = withLocks + `
SELECT {columns}, coalesce({where}, false), r.nth = {looked}, r.available_at FROM (
  SELECT r.*, {state} AS state FROM (
    SELECT r.*, ` + lockerSQL + ` AS locked_by FROM (
      SELECT ` + rowColumns + `, r.available_at, r.xmax AS locker,
             row_number() OVER (ORDER BY {order}) AS nth
      FROM {outbox} r WHERE {from} ORDER BY {order} LIMIT {looked}) r) r) r
WHERE ({where}) OR r.nth = {looked} ORDER BY {order} LIMIT {limit}`

// The orders; each is the order of an index.
const (
	byID   = "r.id"
	byTime = "r.available_at, r.id"
	byKey  = "r.ordering_key, r.id"
)

// List returns a page of the rows that match the filter. Rows of the outbox come by id, by time for a state with a
// time, or by key for Blocked; Dead and Published are lists of their own, newest first. Its cost does not depend on the
// number of rows. It does not use an index for IDs in the outbox; in the other lists, IDs have one page. ErrCursor: the
// cursor is of another list. ErrNoHistory: published messages are not kept.
func (t *Tables) List(ctx context.Context, filter Filter, page Page) (list Listing[Message], err error) {
	switch filter.State {
	case Dead:
		list, err = deadLetters().page(ctx, t, filter, page)
		return list, t.reading(ctx, "list dead letters of", err)
	case Published:
		list, err = history().page(ctx, t, filter, page)
		return list, t.historyError(ctx, "list messages of", err)
	}
	order, name := orderOf(filter), orderOf(filter)
	keys := order == byKey && filter.OrderingKey == nil
	if keys {
		name = blockedList
	}
	after, err := parseCursor(page.After, name)
	if err != nil {
		return list, err
	}
	state := stateBy("r.locked_by")
	if filter.State == Blocked {
		state = t.blockedState(state, filter.Block)
	}
	where, args := filter.where(ofOutbox, nil)
	from := conditions{args: args}
	switch {
	case keys:
		from.add("r.ordering_key IS NOT NULL")
	case order == byKey:
		from.ofKey(*filter.OrderingKey)
	case order == byTime && filter.State == Due:
		from.add("r.available_at <= (SELECT clock_timestamp())")
	case order == byTime:
		from.add("r.available_at > (SELECT clock_timestamp())")
	}
	from.after(after)
	sql := t.fill(listWaitingSQL,
		"{columns}", waitingColumns(page.Payload, "r.locked_by", "r.state"),
		"{state}", state,
		"{order}", order,
		"{from}", from.String(),
		"{where}", where,
		"{looked}", fmt.Sprint(MostLooked),
		"{limit}", fmt.Sprint(page.Limit+1))
	err = t.glanceAt(ctx, mostListed(), func(ctx context.Context, tx querier, most string) (err error) {
		sql := strings.ReplaceAll(sql, "{most}", most)
		list, err = collectPage(ctx, tx, sql, from.args, page.Limit, func(
			row pgx.CollectableRow,
		) (w Message, at place, err error) {
			var available pgtype.Timestamptz
			w, err = scanWaiting(row, &at.matches, &at.last, &available)
			at.cursor = cursor{List: name, ID: w.ID}
			if order == byTime {
				at.At = timeText(available)
			}
			if keys {
				at.Key = w.OrderingKey
			}
			return w, at, err
		})
		return err
	})
	return list, t.reading(ctx, "list rows of", err)
}

// blockedList is the name in cursors of the list of blocked rows of all keys.
const blockedList = "blocked"

// behindSQL is the condition for rows r that wait behind an older row of their key or, with block, behind a dead
// letter. Stats counts the same rows.
func behindSQL(block bool) string {
	sql := followsSQL
	if block {
		sql += " OR " + behindDeadSQL
	}
	return sql
}

// blockedState is the SQL of a state that also may be Blocked.
func (t *Tables) blockedState(state string, block bool) string {
	return t.fill("(SELECT CASE WHEN o.state IN ('waiting', 'due') AND ({behind}) THEN 'blocked' ELSE o.state END "+
		"FROM (SELECT {state} AS state OFFSET 0) o)", "{behind}", behindSQL(block), "{state}", state)
}

// ofKey selects the rows of a key. It uses BETWEEN instead of equality, so that the order is that of the index.
func (c *conditions) ofKey(key string) { c.add("r.ordering_key BETWEEN %s AND %[1]s", key) }

// after selects the rows after a cursor: by time and id if it has a time, by key and id if it has a key, else by id.
func (c *conditions) after(start *cursor) {
	switch {
	case start == nil || start.Start:
	case start.At != nil:
		c.add("(r.available_at, r.id) > (%s::timestamptz, %s)", *start.At, start.ID)
	case start.Key != nil:
		c.add("(r.ordering_key, r.id) > (%s, %s)", *start.Key, start.ID)
	default:
		c.add("r.id > %s", start.ID)
	}
}

func orderOf(filter Filter) string {
	switch {
	case filter.OrderingKey != nil || filter.State == Blocked:
		return byKey
	case filter.State == Due || filter.State == Retrying || filter.State == Scheduled:
		return byTime
	}
	return byID
}
