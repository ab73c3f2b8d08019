package operator

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
)

// Page is a part of a list: at most Limit rows (1 or more) after a cursor. "" is the start.
type Page struct {
	After string
	Limit int
	// Payload asks for the bodies of the rows.
	Payload bool
	// Newest asks for the rows with the highest ids first.
	Newest bool
}

// Listing is a page of rows. Next is the cursor of the next page; "": the end. A page reads at most MostLooked rows, so
// it may have fewer than Limit, even none, and still a next page.
type Listing[T any] struct {
	Rows []T
	Next string
}

// MostLooked is how many rows one page reads.
const MostLooked = MostCounted

// ErrCursor is returned for a cursor that does not come from a page of the same list.
var ErrCursor = errors.New("want the cursor that the previous page of this list printed")

// span is the part of an index that a list reads, in the order of the index.
type span struct {
	// columns are of rows r, or of other rows whose name is one letter.
	columns    []string
	descending bool
	// first and last are the conditions for its beginning and its end; "": those of the index.
	first, last string
}

const (
	timeHasCome  = `r.available_at <= (SELECT clock_timestamp())`
	timeIsToCome = `r.available_at > (SELECT clock_timestamp())`
)

func byID() span { return span{columns: []string{"r.id"}} }

func byTime(first, last string) span {
	return span{[]string{"r.available_at", "r.id"}, false, first, last}
}

func byKey(first, last string) span {
	return span{[]string{"r.ordering_key", "r.id"}, false, first, last}
}

func byDeath() span { return span{columns: []string{"r.dead_at", "r.id"}, descending: true} }

func byPublication() span { return span{columns: []string{"r.id", "r.published_at"}, descending: true} }

// order is the ORDER BY.
func (s span) order() string {
	if s.descending {
		return strings.Join(s.columns, " DESC, ") + " DESC"
	}
	return strings.Join(s.columns, ", ")
}

// place is the place of a row, for cursors.
func (s span) place() string { return "ARRAY[" + strings.Join(s.columns, "::text, ") + "::text]" }

// addTo adds the conditions on the rows after a cursor; nil: from the beginning.
func (s span) addTo(c *conditions, after *cursor) {
	if after != nil && len(after.Place) > 0 {
		places, values := make([]string, len(s.columns)), make([]any, len(s.columns))
		for i, column := range s.columns {
			kind := map[string]string{"id": "bigint", "ordering_key": "text"}[column[2:]]
			if kind == "" {
				kind = "timestamptz"
			}
			places[i], values[i] = "%s::text::"+kind, after.Place[i]
		}
		than := ">"
		if s.descending {
			than = "<"
		}
		c.add("("+strings.Join(s.columns, ", ")+") "+than+" ("+strings.Join(places, ", ")+")", values...)
	}
	for _, end := range []string{s.first, s.last} {
		if end != "" { // it may also be the predicate of the index
			c.add(end)
		}
	}
}

// cursor is the last row that was read.
type cursor struct {
	// List is the order of the list.
	List string `json:"l"`
	// Place has the values of its columns as Postgres writes them; none: the beginning.
	Place []string `json:"p"`
}

// text is opaque and needs no quotes in a shell or a URL.
func (c cursor) text() string {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // every field can be JSON
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// parseCursor returns nil for the start of a list.
func parseCursor(text string, lists ...span) (*cursor, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // the start
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	var c cursor
	isOf := func(s span) bool {
		return c.List == s.order() && (len(c.Place) == 0 || len(c.Place) == len(s.columns))
	}
	if err != nil || json.Unmarshal(raw, &c) != nil || !slices.ContainsFunc(lists, isOf) {
		return nil, ErrCursor
	}
	return &c, nil
}

// readPage runs a statement for the rows after a cursor: those that match, one more than the limit, and the last that
// is read. Its columns are those of scan, the place, whether the row matches, and whether it is the last.
func readPage[T any](
	ctx context.Context, t *Tables, in span, after *cursor, sql, most string, args []any, limit int,
	scan func(row pgx.CollectableRow, more ...any) (T, error),
) (list Listing[T], err error) {
	err = t.read(ctx, t.glance, sql, most, args, func(rows pgx.Rows) error {
		list = Listing[T]{}
		for before := (cursor{}); rows.Next(); {
			at, matches, last := cursor{List: in.order()}, false, false
			row, err := scan(rows, &at.Place, &matches, &last)
			if err != nil {
				return err
			}
			if len(list.Rows) == limit && (matches || last) {
				list.Next = before.text()
				break
			}
			if matches {
				list.Rows = append(list.Rows, row)
			}
			if last {
				list.Next = at.text()
				break
			}
			before = at
		}
		rows.Close()
		return rows.Err()
	})
	if after != nil && pgcode.Class(err) == pgcode.DataException { // a person has changed its values
		err = ErrCursor
	}
	return list, err
}

// The ordered part is a subquery, because a CTE would be read to its end.
const pageSQL = withLocks + `
SELECT {columns}, {place}, coalesce({where}, false), r.nth = {looked} FROM ({stated}) r
WHERE ({where}) OR r.nth = {looked} ORDER BY {order} LIMIT {limit}`

const lookedSQL = `SELECT ` + rowColumns + `, {own}, row_number() OVER (ORDER BY {order}) AS nth
      FROM {from} r WHERE {after} ORDER BY {order} LIMIT {looked}`

// List returns a page of the rows that match the filter. Rows of the outbox come by id, by time for a state with a
// time, or by key for Blocked; Dead and Published are lists of their own, newest first. Its cost does not depend on the
// number of rows. It does not use an index for IDs in the outbox; in the other lists, IDs have one page. ErrCursor: the
// cursor is of another list. ErrNoHistory: published messages are not kept.
func (t *Tables) List(ctx context.Context, filter Filter, page Page) (list Listing[Message], err error) {
	from, in := sourceOf(filter.State, filter.Known), filter.State.info().list
	where, args := filter.where(from, nil)
	if filter.Named() && !filter.State.Waits() {
		list.Rows, err = t.messages(ctx, t.look, from.found(where, in.order(), page.Limit, page.Payload), mostListed(),
			args...)
		return list, t.reading(ctx, from, "list rows of", err)
	}
	read := conditions{args: args}
	switch key := filter.OrderingKey; {
	case page.Newest:
		in = span{columns: []string{"r.id"}, descending: true}
	case key != nil && filter.State.Waits(): // with equality, the order would not be that of the index
		in = byKey("", "")
		read.add("r.ordering_key BETWEEN %s AND %[1]s", *key)
	case filter.State == NotDeleted:
		read.add("r.id = ANY(%s::bigint[])", filter.NotDeleted)
	}
	after, err := parseCursor(page.After, in)
	if err != nil {
		return list, err
	}
	in.addTo(&read, after)
	sql := strings.NewReplacer("{stated}", from.stated(lookedSQL)).Replace(pageSQL)
	sql = strings.NewReplacer(
		"{columns}", from.columns(page.Payload), "{own}", from.own, "{from}", from.table, "{where}", where,
		"{place}", in.place(), "{order}", in.order(), "{after}", read.String(), "{looked}", fmt.Sprint(MostLooked),
		"{limit}", fmt.Sprint(page.Limit+1)).Replace(sql)
	list, err = readPage(ctx, t, in, after, sql, mostListed(), read.args, page.Limit, scanMessage)
	return list, t.reading(ctx, from, "list rows of", err)
}

// Offered are values that occur among the newest rows of a table, for people who choose a filter.
type Offered struct{ RoutingKeys, Exchanges, Reasons []string }

// mostOffered bounds the values of one column.
const mostOffered = 100

// The newest rows are read, because the others may be many.
const offeredSQL = `
WITH newest AS MATERIALIZED (
  SELECT pg_catalog.left(r.routing_key, 255) AS routing_key, {exchange} AS exchange, {reasons} AS reasons
  FROM {from} r ORDER BY {order} LIMIT 1000
)
(SELECT DISTINCT 'routing key', v.routing_key FROM newest v WHERE v.routing_key <> '' LIMIT $1)
UNION ALL (SELECT DISTINCT 'exchange', v.exchange FROM newest v WHERE v.exchange <> '' LIMIT $1)
UNION ALL (SELECT DISTINCT 'reason', reason FROM newest v CROSS JOIN LATERAL pg_catalog.unnest(v.reasons) reason
  WHERE reason <> '' LIMIT $1)`

func offeredStatement(s State) string {
	from, in := sourceOf(s, Known{}), s.info().list
	in.descending = true
	return strings.NewReplacer("{from}", from.table, "{order}", in.order(), "{reasons}", from.reasons,
		"{exchange}", exchangeText("pg_catalog.left(r.exchange, 255)")).Replace(offeredSQL)
}

// Offer returns values of the newest rows: of the outbox, of the dead letters or of the history, by the state. Its cost
// does not depend on the number of rows.
func (t *Tables) Offer(ctx context.Context, s State) (o Offered, err error) {
	err = t.glance(ctx, func(ctx context.Context, tx querier) error {
		rows, err := tx.Query(ctx, t.fill(offeredStatement(s)), mostOffered)
		if err != nil {
			return err
		}
		into := map[string]*[]string{"routing key": &o.RoutingKeys, "exchange": &o.Exchanges, "reason": &o.Reasons}
		var column, value string
		_, err = pgx.ForEachRow(rows, []any{&column, &value}, func() error {
			*into[column] = append(*into[column], value)
			return nil
		})
		return err
	})
	for _, values := range [][]string{o.RoutingKeys, o.Exchanges, o.Reasons} {
		slices.Sort(values)
	}
	return o, t.reading(ctx, sourceOf(s, Known{}), "read values of", err)
}
