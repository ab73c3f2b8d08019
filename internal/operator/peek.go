package operator

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// Peeked is a message that waits, as it would be sent now.
type Peeked struct {
	*outbox.Message
	State State
	// Redacted stands in for the payload; nil: nothing does.
	Redacted []byte
}

// The lists of Peek, in the order in which they leave: rows that may leave now by id, those that wait for their time by that
// time, and what waits behind one of those or, with block, behind a dead letter. Of one ordering key there is one list.
const (
	peekReady  = "ready"
	peekTimed  = "timed"
	peekBehind = "behind"
	peekKey    = "key"
)

// Rows that wait for their time and have a key: those behind them wait, too.
const parkedSQL = `
SELECT r.ordering_key, r.id FROM (SELECT r.ordering_key, r.id FROM {outbox} r WHERE r.available_at > statement_timestamp()
  ORDER BY r.available_at, r.id LIMIT {looked}) r WHERE r.ordering_key IS NOT NULL`

// A page of rows in the order of an index, as listWaitingSQL. Blocked rows are behind a dead letter.
const peekSQL = `
SELECT r.id, r.ordering_key, r.available_at, r.ordering_key IS NOT NULL AND {blocked}, coalesce({where}, false), r.nth = {looked} FROM (
  SELECT r.id, r.message_id, r.exchange, r.routing_key, r.ordering_key, r.created_at, r.available_at, r.expires_at, r.schema_version,
         r.coalesce_key, row_number() OVER (ORDER BY {order}) AS nth
  FROM {outbox} r WHERE {from} ORDER BY {order} LIMIT {looked}) r
WHERE ({where}) OR r.nth = {looked} ORDER BY {order} LIMIT {looked}`

// leaves leaves out what is not published: what has expired, is of a newer version, or has a newer row with its coalesce key.
const leaves = `r.schema_version <= {version} AND coalesce(r.expires_at > statement_timestamp(), true) AND NOT ` + store.IsSuperseded

// A row may have left since it was found.
const peekedSQL = `
SELECT {message_columns}, r.redacted_payload::text, {state}
FROM unnest($1::bigint[]) WITH ORDINALITY w(id, nth) JOIN {outbox} r ON r.id BETWEEN w.id AND w.id ORDER BY w.nth`

// Peek shows a page of the messages that the filter picks, in the order in which they would leave. It locks and changes
// nothing, and its cost does not follow the number of rows that wait: rows count as behind others if those are among the
// next MostLooked to become due. The filter has no State and no Reason. Block: a dead letter holds its key up. Headers are
// columns of the application to read. ErrCursor: the cursor is of another list.
func (t *Tables) Peek(ctx context.Context, filter Filter, page Page, block bool, headers []string) (list Listing[Peeked], err error) {
	lists := []string{peekReady, peekTimed, peekBehind}
	if filter.OrderingKey != nil {
		lists = []string{peekKey}
	}
	after, err := parseCursor(page.After, lists...)
	if err != nil {
		return list, err
	}
	for after != nil && lists[0] != after.List {
		lists = lists[1:]
	}
	if err := store.CheckHeaders(ctx, t.conn, t.table, headers); err != nil {
		return list, err
	}
	err = t.glance(ctx, func(ctx context.Context, tx querier) error {
		parked, err := t.parked(ctx, tx)
		if err != nil {
			return err
		}
		var ids []int64
		for _, name := range lists {
			room := page.Limit - len(ids)
			found, err := t.peek(ctx, tx, filter, name, after, room, block, parked)
			if err != nil {
				return err
			}
			if ids, after, list.Next = append(ids, found.Rows...), nil, found.Next; list.Next == "" {
				continue
			}
			if room == 0 {
				list.Next = cursor{List: name, Start: true}.text()
			}
			break
		}
		list.Rows, err = t.peeked(ctx, tx, ids, headers)
		return err
	})
	return list, t.reading(ctx, "look at what leaves", err)
}

// parked are the keys that wait for a time, each with the first row that does.
func (t *Tables) parked(ctx context.Context, tx querier) (map[string]int64, error) {
	rows, err := tx.Query(ctx, t.fill(parkedSQL, "{looked}", fmt.Sprint(MostLooked)))
	if err != nil {
		return nil, err
	}
	parked := make(map[string]int64)
	var key string
	var id int64
	_, err = pgx.ForEachRow(rows, []any{&key, &id}, func() error {
		if first, known := parked[key]; !known || id < first {
			parked[key] = id
		}
		return nil
	})
	return parked, err
}

// peek finds the next rows of one list.
func (t *Tables) peek(
	ctx context.Context, tx querier, filter Filter, name string, after *cursor, limit int, block bool, parked map[string]int64,
) (Listing[int64], error) {
	where, args := filter.where(ofOutbox, nil)
	order, from := byID, conditions{args: args}
	switch name {
	case peekReady:
		where += " AND coalesce(r.available_at <= statement_timestamp(), true)"
	case peekTimed:
		order = byTime
		from.add("r.available_at > statement_timestamp()")
	case peekKey:
		order = byKey
		from.ofKey(*filter.OrderingKey)
	}
	from.after(after)
	blocked := "false"
	if block {
		blocked = "NOT " + store.NotBlocked
	}
	sql := t.fill(peekSQL, "{order}", order, "{from}", from.String(), "{where}", where+" AND "+leaves, "{blocked}", blocked,
		"{looked}", fmt.Sprint(MostLooked))
	return collectPage(ctx, tx, sql, from.args, limit, func(row pgx.CollectableRow) (id int64, at place, err error) {
		var key *string
		var available pgtype.Timestamptz
		var behind bool
		err = row.Scan(&id, &key, &available, &behind, &at.matches, &at.last)
		if key != nil {
			first, known := parked[*key]
			behind = behind || known && first < id
		}
		at.matches = at.matches && (name == peekKey || behind == (name == peekBehind))
		at.cursor = cursor{List: name, ID: id}
		if name == peekTimed {
			at.At = timeText(available)
		}
		return id, at, err
	})
}

// peeked reads rows that were found.
func (t *Tables) peeked(ctx context.Context, tx querier, ids []int64, headers []string) (all []Peeked, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, t.fill(peekedSQL, "{state}", stateBy("0"), "{message_columns}", store.MessageColumns(headers)), ids)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var redacted *string
	var state State
	scanner := store.NewScanner(headers, &redacted, &state)
	for rows.Next() {
		m, err := scanner.Scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, Peeked{m, state, bytesOf(redacted)})
	}
	return all, rows.Err()
}
