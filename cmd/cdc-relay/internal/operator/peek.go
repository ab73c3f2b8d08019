package operator

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// Peeked is a message that waits, as it would be sent now.
type Peeked struct {
	*outbox.Message
	State State
	// IsRedacted: Redacted stands in for the payload. Redacted is nil if it is too large.
	IsRedacted bool
	Redacted   []byte
	// PayloadSize is the size of the body in bytes, as in StoredMessage.
	PayloadSize Count
	// PayloadShown: the message has its body. Otherwise the body is redacted, was not asked for, or is too large, and
	// the message has an empty one.
	PayloadShown bool
	// Large are values that are too large to show. The message does not have them.
	Large []Large
}

// The lists of Peek, in the order in which they leave: rows that may leave now by id, those that wait for their time by
// that time, and what waits behind one of those or, with block, behind a dead letter. Of one ordering key there is one
// list.
const (
	peekReady  = "ready"
	peekTimed  = "timed"
	peekBehind = "behind"
	peekKey    = "key"
)

// Rows that wait for their time and have a key: those behind them wait, too.
const timedRowsSQL = `
SELECT r.ordering_key, r.id FROM (SELECT r.ordering_key, r.id FROM {outbox} r
                                  WHERE r.available_at > statement_timestamp()
  ORDER BY r.available_at, r.id LIMIT {looked}) r WHERE r.ordering_key IS NOT NULL`

// A page of rows in the order of an index, as listWaitingSQL. Blocked rows are behind a dead letter.
const peekSQL = `
SELECT r.id, r.ordering_key, r.available_at, r.ordering_key IS NOT NULL AND {blocked}, coalesce({where}, false),
       r.nth = {looked}
FROM (
  SELECT r.id, r.message_id, r.exchange, r.routing_key, r.ordering_key, r.created_at, r.available_at, r.expires_at,
         r.schema_version, r.headers,
         r.coalesce_key, row_number() OVER (ORDER BY {order}) AS nth
  FROM {outbox} r WHERE {from} ORDER BY {order} LIMIT {looked}) r
WHERE ({where}) OR r.nth = {looked} ORDER BY {order} LIMIT {looked}`

// leaves leaves out what is not published: what has expired, is of a newer version, or has a newer row with its
// coalesce key.
const leaves = `r.schema_version <= {version} AND coalesce(r.expires_at > statement_timestamp(), true)
  AND NOT ` + store.IsSuperseded

// A row may have left since it was found. Bodies are shown up to a limit for all of them together.
const peekedSQL = `
SELECT {message_columns}, {redacted}, {sizes}, {payload_size}, r.payload IS NOT NULL, r.payload_bytes IS NOT NULL,
       {state}
FROM (SELECT w.nth, w.id, pg_catalog.sum({weight}) OVER (ORDER BY w.nth) <= {most_peeked}::numeric AS fits
      FROM pg_catalog.unnest($1::bigint[]) WITH ORDINALITY w(id, nth) JOIN {outbox} r ON r.id BETWEEN w.id AND w.id) w
JOIN {outbox} r ON r.id BETWEEN w.id AND w.id ORDER BY w.nth`

// peekedColumn is how a peek reads a column of a message.
func peekedColumn(column string, payload bool) string {
	as, limits := column, "w.fits"
	switch column {
	case "r.exchange", "r.routing_key", "r.ordering_key":
		return shownText(column)
	case "r.headers", "r.properties", "r.redacted_payload":
		as = shownJSON(column)
	case "r.payload":
		as = shownJSON(column)
	case "r.payload_bytes":
		as = shownBytes(column)
	default:
		if !strings.HasPrefix(column, `r."`) { // of a fixed size
			return column
		}
		limits += " AND " + isSmall(column) + " AND pg_catalog.octet_length(" + column + "::text) <= {most}"
	}
	if strings.HasPrefix(column, "r.payload") {
		if !payload {
			return "NULL::bytea"
		}
		limits += " AND r.redacted_payload IS NULL"
	}
	return "CASE WHEN " + limits + " THEN " + as + " END"
}

// largeColumns are the columns of a peek that may be large. The columns of the application are the last ones.
func largeColumns(headers []string) []string {
	columns := []string{"r.headers", "r.properties", "r.redacted_payload", "r.payload", "r.payload_bytes"}
	for _, name := range headers {
		columns = append(columns, "r."+outbox.QuoteIdentifier(name))
	}
	return columns
}

// Peek shows a page of the messages that the filter picks, in the order in which they would leave. It locks and changes
// nothing, and its cost does not follow the number of rows that wait: rows count as behind others if those are among
// the next MostLooked to become due. The filter has no State and no Reason. Block: a dead letter holds its key up.
// Headers are columns of the application to read, and payload asks for the bodies. ErrCursor: the cursor is of another
// list.
func (t *Tables) Peek(
	ctx context.Context, filter Filter, page Page, block bool, headers []string, payload bool,
) (list Listing[Peeked], err error) {
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
	if err := schema.CheckHeaders(ctx, t.conn, t.table, headers); err != nil {
		return list, err
	}
	var ids []int64
	err = t.glance(ctx, func(ctx context.Context, tx querier) error {
		timed, err := t.timed(ctx, tx)
		if err != nil {
			return err
		}
		for _, name := range lists {
			room := page.Limit - len(ids)
			found, err := t.peek(ctx, tx, filter, name, after, room, block, timed)
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
		return nil
	})
	if err == nil && len(ids) > 0 {
		err = t.glanceAt(ctx, strconv.Itoa(MostShown), func(ctx context.Context, tx querier, most string) error {
			list.Rows, err = t.peeked(ctx, tx, ids, headers, payload, most)
			return err
		})
	}
	return list, t.reading(ctx, "look at what leaves", err)
}

// timed are the keys that wait for a time, each with the first row that does.
func (t *Tables) timed(ctx context.Context, tx querier) (map[string]int64, error) {
	rows, err := tx.Query(ctx, t.fill(timedRowsSQL, "{looked}", fmt.Sprint(MostLooked)))
	if err != nil {
		return nil, err
	}
	timed := make(map[string]int64)
	var key string
	var id int64
	_, err = pgx.ForEachRow(rows, []any{&key, &id}, func() error {
		if first, known := timed[key]; !known || id < first {
			timed[key] = id
		}
		return nil
	})
	return timed, err
}

// peek finds the next rows of one list.
func (t *Tables) peek(
	ctx context.Context, tx querier, filter Filter, name string, after *cursor, limit int, block bool,
	timed map[string]int64,
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
	sql := t.fill(peekSQL,
		"{order}", order,
		"{from}", from.String(),
		"{where}", where+" AND "+leaves,
		"{blocked}", blocked,
		"{looked}", fmt.Sprint(MostLooked))
	return collectPage(ctx, tx, sql, from.args, limit, func(row pgx.CollectableRow) (id int64, at place, err error) {
		var key *string
		var available pgtype.Timestamptz
		var behind bool
		err = row.Scan(&id, &key, &available, &behind, &at.matches, &at.last)
		if key != nil {
			first, known := timed[*key]
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

// peekedStatement reads rows that were found, with values of up to most bytes.
func (t *Tables) peekedStatement(headers []string, payload bool, most string) string {
	var sizes, weights []string
	for _, column := range largeColumns(headers) {
		sizes = append(sizes, "pg_catalog.pg_column_size("+column+")")
		if payload || !strings.HasPrefix(column, "r.payload") {
			weights = append(weights, "CASE WHEN "+isSmall(column)+" THEN "+weight(column)+" ELSE 0 END")
		}
	}
	columns := store.MessageColumnsAs(headers, func(column string) string { return peekedColumn(column, payload) })
	sql := t.fill(peekedSQL,
		"{state}", stateBy("0"),
		"{message_columns}", columns,
		"{redacted}", peekedColumn("r.redacted_payload", payload),
		"{sizes}", "ARRAY["+strings.Join(sizes, ", ")+"]",
		"{weight}", strings.Join(weights, " + "),
		"{payload_size}", payloadSize(),
		"{most_peeked}", strconv.Itoa(mostPeeked))
	return strings.ReplaceAll(sql, "{most}", most)
}

// peeked reads rows that were found, with values of up to most bytes.
func (t *Tables) peeked(
	ctx context.Context, tx querier, ids []int64, headers []string, payload bool, most string,
) (all []Peeked, err error) {
	rows, err := tx.Query(ctx, t.peekedStatement(headers, payload, most), ids)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var redacted *string
	var sizes []*int64 // as largeColumns
	var p Peeked
	var exact, json, binary bool
	scanner := store.NewScanner(headers, &redacted, &sizes, &p.PayloadSize.N, &exact, &json, &binary, &p.State)
	for rows.Next() {
		m, err := scanner.Scan(rows)
		if err != nil {
			return nil, err
		}
		p.Message, p.Redacted, p.IsRedacted = m, bytesOf(redacted), sizes[2] != nil
		p.PayloadSize.Precision = precisionOf(exact)
		p.PayloadShown = m.Payload != nil
		p.Large = slices.Concat(
			larger("headers", m.Headers != nil, sizes[0]),
			larger("properties", m.Properties != nil, sizes[1]),
			larger("redacted_payload", redacted != nil, sizes[2]),
		)
		if payload && !p.IsRedacted && binary {
			p.Large = append(p.Large, larger("payload_bytes", p.PayloadShown, sizes[4])...)
		} else if payload && !p.IsRedacted {
			p.Large = append(p.Large, larger("payload", p.PayloadShown, sizes[3])...)
		}
		for i, name := range headers {
			shown := slices.ContainsFunc(m.Extra, func(h outbox.Header) bool { return h.Name == name })
			p.Large = append(p.Large, larger(name, shown, sizes[5+i])...)
		}
		if m.Binary, m.BothPayloads = binary, binary && json; m.Payload == nil && (binary || json) {
			m.Payload = []byte{}
		}
		all = append(all, p)
	}
	return all, rows.Err()
}
