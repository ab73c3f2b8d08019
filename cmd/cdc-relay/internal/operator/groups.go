package operator

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgtime"
)

// Cause is why messages failed. Messages of one cause are fixed together.
type Cause struct {
	// Reason is the code of the error, or failure_reason without an error. Filter.Reason selects by it.
	Reason string
	// Exchange is as in a Filter, which selects by it.
	Exchange string
	// RoutingKey is part of the cause only with GroupOptions.Keys; else nil.
	RoutingKey *string
	// Header is the value of GroupOptions.Header, or its first 255 characters; "": the messages have no such text,
	// number or boolean. Nil: not grouped by a header.
	Header *string
}

// Group is a number of messages that failed for one cause.
type Group struct {
	Cause
	// OneKey is the routing key of all the messages; nil: they have several. Keys counts them.
	OneKey *string
	Keys   int64
	// Example is the newest error, up to mostExample characters.
	Example string
	N       int64
	// First and Last are the earliest and the latest time: of a death, or of the next try.
	First, Last *time.Time
}

// Groups are the largest groups.
type Groups struct {
	All []Group
	// N counts the messages of all groups, also of those that are not among All. It is AtLeast if only the first
	// MostCounted rows were read.
	N Count
	// Causes is how many groups there are, also those that are not among All.
	Causes int64
}

// GroupOptions says what to group.
type GroupOptions struct {
	// Most is up to how many groups to return.
	Most int
	// Header is a header by whose values messages are grouped, too; "": none.
	Header string
	// Keys: group all messages of this cause by routing key; nil: group by cause.
	Keys *Cause
}

const groupsSQL = `
WITH looked AS MATERIALIZED (
  SELECT {routing_key} AS routing_key, {exchange} AS exchange, {header} AS header,
         pg_catalog.left({error}, {example}) AS error, {at} AS at, {failed} AS failed
  FROM {from} ORDER BY {order} LIMIT $1
), failed AS (SELECT l.*, {code} AS code FROM looked l WHERE l.failed)
SELECT code, exchange, CASE WHEN {by_key} THEN pg_catalog.min(routing_key) END, header,
       CASE WHEN pg_catalog.min(routing_key) = pg_catalog.max(routing_key) THEN pg_catalog.min(routing_key) END,
       pg_catalog.count(DISTINCT routing_key), coalesce((pg_catalog.array_agg(error ORDER BY at DESC))[1], ''),
       count(*), pg_catalog.min(at), pg_catalog.max(at), (pg_catalog.sum(count(*)) OVER ())::bigint,
       count(*) OVER (), (SELECT count(*) FROM looked)
FROM failed WHERE {where} GROUP BY code, exchange, CASE WHEN {by_key} THEN routing_key END, header
ORDER BY count(*) DESC, 1, 2, 3, 4 LIMIT $2`

// groupsStatement reads the newest dead letters, or the earliest retries. It returns the statement, and its arguments
// after the number of rows to read.
func groupsStatement(of State, o GroupOptions) (string, []any) {
	if of == Dead {
		return groupsOf(o, "coalesce(r.last_error, r.failure_reason)", "r.dead_at", "true",
			"{dead} r", "r.dead_at DESC")
	}
	return groupsOf(o, "r.last_error", "r.available_at", "r.attempts > 0",
		"{outbox} r WHERE r.available_at IS NOT NULL", "r.available_at")
}

// groupsOf returns the statement, and its arguments after the number of rows to read.
func groupsOf(o GroupOptions, failure, at, failed, from, order string) (string, []any) {
	within := conditions{args: []any{nil, o.Most}}
	byKey, header := "false", "NULL::text"
	if o.Header != "" {
		within.args = append(within.args, o.Header)
		header = shownHeader(fmt.Sprintf("$%d", len(within.args)))
	}
	if o.Keys != nil {
		byKey = "true"
		within.add("code = %s", o.Keys.Reason)
		within.add("exchange = %s", o.Keys.Exchange)
	}
	return strings.NewReplacer(
		"{routing_key}", shownText("r.routing_key"),
		"{exchange}", exchangeText("("+shownText("r.exchange")+")"),
		"{header}", header,
		"{error}", failure,
		"{example}", fmt.Sprint(mostExample),
		"{at}", at,
		"{failed}", failed,
		"{from}", from,
		"{order}", order,
		"{code}", errorCode("coalesce(l.error, '')"),
		"{by_key}", byKey,
		"{where}", within.String(),
	).Replace(groupsSQL), within.args[1:]
}

// Groups returns the largest groups of dead letters, or of rejected rows that wait for a retry. Its cost does not
// depend on their number. Requeue and Retry select the same rows.
func (t *Tables) Groups(ctx context.Context, of State, o GroupOptions) (g Groups, err error) {
	err = t.glance(ctx, func(ctx context.Context, tx querier) error {
		g, err = t.collectGroups(ctx, tx, pgtype.Int8{Int64: MostCounted + 1, Valid: true}, of, o)
		return err
	})
	return g, t.reading(ctx, waiting(Known{}), "group rows of", err)
}

// collectGroups reads at most so many rows; null: all.
func (t *Tables) collectGroups(
	ctx context.Context, tx querier, most pgtype.Int8, of State, o GroupOptions,
) (g Groups, err error) {
	g.N.Precision = Exact
	sql, args := groupsStatement(of, o)
	rows, err := tx.Query(ctx, t.fill(sql), append([]any{most}, args...)...)
	if err != nil {
		return g, err
	}
	var looked int64
	g.All, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (one Group, err error) {
		var first, last pgtype.Timestamptz
		err = row.Scan(&one.Reason, &one.Exchange, &one.RoutingKey, &one.Header, &one.OneKey, &one.Keys, &one.Example,
			&one.N, &first, &last, &g.N.N, &g.Causes, &looked)
		one.First, one.Last = pgtime.FromColumn(first), pgtime.FromColumn(last)
		return one, err
	})
	g.N.Precision = counted(looked, most.Int64).Precision
	return g, err
}
