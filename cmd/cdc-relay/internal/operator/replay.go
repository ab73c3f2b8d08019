package operator

import (
	"context"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
	"golang.org/x/time/rate"

	"github.com/cdc-relay/cdc-relay/internal/schema"
)

// The first copy of each message: the history also has those of earlier replays.
const replayChoiceSQL = `
SELECT f.id, f.message_id, f.published_at, f.id, f.size FROM (
  SELECT DISTINCT ON (r.message_id) r.id, r.message_id, r.published_at, ` + storedSize + ` AS size
    FROM {published} r WHERE {where} ORDER BY r.message_id, r.id, r.published_at) f
WHERE f.id > $1 ORDER BY f.id, f.published_at`

// A replayed message is a new row, marked and due, so that the stream does not publish it directly. It does not expire,
// and is not coalesced.
const replaySQL = `
WITH copies AS (
  SELECT r.*, s.nth FROM unnest($1::bigint[], $2::timestamptz[]) WITH ORDINALITY s(id, published_at, nth)
  JOIN {published} r ON r.id = s.id AND r.published_at = s.published_at),
put AS (
INSERT INTO {outbox} ({again}, possible_duplicate, available_at) SELECT {again_of_row}, true, clock_timestamp()
FROM copies r ORDER BY r.nth RETURNING 1)
SELECT (SELECT count(*) FROM copies), (SELECT count(*) FROM put)`

// replayStatement is replaySQL: a copy neither expires nor gives way to a newer row.
func (t *Tables) replayStatement() string {
	columns := slices.DeleteFunc(schema.Copied(), func(column string) bool {
		return slices.Contains([]string{"id", "expires_at", "coalesce_key"}, column)
	})
	of := strings.NewReplacer("r.exchange,", "coalesce($3::text, r.exchange),",
		"r.routing_key,", "coalesce($4::text, r.routing_key),").Replace(schema.List(columns, "r."))
	return t.fill(replaySQL, "{again}", schema.List(columns, ""), "{again_of_row}", of)
}

// Copies say how published messages are sent again.
type Copies struct {
	// Exchange and RoutingKey replace those of the messages; nil: unchanged.
	Exchange, RoutingKey *string
	// PerSecond is the most messages per second; 0: no limit.
	PerSecond float64
	// AfterID continues after this id; nil: from the start.
	AfterID *int64
}

func (c Copies) after() int64 {
	if c.AfterID == nil {
		return math.MinInt64
	}
	return *c.AfterID
}

// pace returns the limit of the rate, and the rows of a batch.
func (c Copies) pace(batch int) (*rate.Limiter, int) {
	if c.PerSecond == 0 {
		return rate.NewLimiter(rate.Inf, batch), batch
	}
	batch = min(batch, max(1, int(c.PerSecond/10)))
	return rate.NewLimiter(rate.Limit(c.PerSecond), batch), batch
}

// replay inserts copies of a batch, oldest first. They keep their message_id and have the mark.
func (t *Tables) replay(ctx context.Context, rows []chosenRow, how Copies, pace *rate.Limiter, done *Changed) error {
	if err := pace.WaitN(ctx, len(rows)); err != nil {
		return err
	}
	ids, times := make([]int64, len(rows)), make([]pgtype.Timestamptz, len(rows))
	for i, row := range rows {
		ids[i], times[i] = row.ID, row.PublishedAt
	}
	if _, err := t.move(ctx, t.replayStatement(), ids, times, how.Exchange, how.RoutingKey); err != nil {
		return err
	}
	done.Done += int64(len(rows))
	done.LastID = rows[len(rows)-1].ID
	return nil
}
