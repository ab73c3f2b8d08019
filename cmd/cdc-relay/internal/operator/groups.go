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

// Group is a number of messages with one routing key that failed for one reason.
type Group struct {
	RoutingKey string
	// Reason is the code of the newest error, or failure_reason without an error. Filter.Reason selects by it.
	Reason string
	// Example is the newest error, up to mostExample characters.
	Example string
	N       int64
	// First and Last are the earliest and the latest time: of a death, or of the next try.
	First, Last *time.Time
}

// Groups are the largest groups, and whether they count all rows or the first MostCounted.
type Groups struct {
	All       []Group
	Precision Precision
}

const groupsSQL = `
WITH looked AS MATERIALIZED (
  SELECT {routing_key} AS routing_key, pg_catalog.left({error}, {example}) AS error, {at} AS at, {failed} AS failed
  FROM {from} ORDER BY {order} LIMIT $1
)
SELECT routing_key, {code}, coalesce((pg_catalog.array_agg(error ORDER BY at DESC))[1], ''), count(*),
       pg_catalog.min(at), pg_catalog.max(at), (SELECT count(*) FROM looked)
FROM looked WHERE failed GROUP BY 1, 2 ORDER BY count(*) DESC, 1, 2 LIMIT $2`

// deadGroupsSQL reads the newest dead letters, retryGroupsSQL the earliest retries.
func deadGroupsSQL() string {
	return groupsOf("coalesce(r.last_error, r.failure_reason)", "r.dead_at", "true", "{dead} r", "r.dead_at DESC")
}

func retryGroupsSQL() string {
	return groupsOf("r.last_error", "r.available_at", "r.attempts > 0", "{outbox} r WHERE r.available_at IS NOT NULL",
		"r.available_at")
}

func groupsOf(failure, at, failed, from, order string) string {
	return strings.NewReplacer(
		"{routing_key}", shownText("r.routing_key"),
		"{error}", failure,
		"{example}", fmt.Sprint(mostExample),
		"{at}", at,
		"{failed}", failed,
		"{from}", from,
		"{order}", order,
		"{code}", errorCode("coalesce(error, '')"),
	).Replace(groupsSQL)
}

// DeadGroups returns the largest groups of dead letters, at most most. Its cost does not depend on their number.
func (t *Tables) DeadGroups(ctx context.Context, most int) (Groups, error) {
	return t.groups(ctx, deadGroupsSQL(), most)
}

// RetryGroups returns the largest groups of rejected rows that wait for a retry. RetryNow selects the same rows.
func (t *Tables) RetryGroups(ctx context.Context, most int) (Groups, error) {
	return t.groups(ctx, retryGroupsSQL(), most)
}

func (t *Tables) groups(ctx context.Context, sql string, most int) (g Groups, err error) {
	const stop = MostCounted + 1
	err = t.glance(ctx, func(ctx context.Context, tx querier) error {
		rows, err := tx.Query(ctx, t.fill(sql), stop, most)
		if err != nil {
			return err
		}
		var looked int64
		g.All, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (one Group, err error) {
			var first, last pgtype.Timestamptz
			err = row.Scan(&one.RoutingKey, &one.Reason, &one.Example, &one.N, &first, &last, &looked)
			one.First, one.Last = pgtime.FromColumn(first), pgtime.FromColumn(last)
			return one, err
		})
		g.Precision = counted(looked, stop).Precision
		return err
	})
	return g, t.reading(ctx, "group rows of", err)
}
