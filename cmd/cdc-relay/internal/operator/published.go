package operator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"golang.org/x/time/rate"

	"github.com/cdc-relay/cdc-relay/internal/pgtime"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/schema"
)

// PublishedMessage is a message of the history.
type PublishedMessage struct {
	StoredMessage
	PublishedAt time.Time
}

// ErrNoHistory is returned if published messages are not kept.
var ErrNoHistory = errors.New("published messages are not kept")

func history() newest[PublishedMessage] {
	return newest[PublishedMessage]{
		of: ofPublished, from: "{published}", own: "r.published_at", shown: "r.published_at",
		order: "r.id DESC, r.published_at DESC", after: "(r.id, r.published_at) < (%[2]s, %[1]s::timestamptz)",
		scan: func(row pgx.CollectableRow, published *pgtype.Timestamptz, more ...any) (m PublishedMessage, err error) {
			m.StoredMessage, err = scanStored(row, append([]any{published}, more...)...)
			m.PublishedAt = pgtime.FromRequired(*published)
			return m, err
		},
	}
}

// PublishedMessages returns a page of the history that matches the filter, newest rows first, without payloads. Its
// cost does not depend on their number, unless the filter names messages. ErrCursor: the cursor is of another list.
// ErrNoHistory: there is no history.
func (t *Tables) PublishedMessages(ctx context.Context, filter Filter, page Page) (Listing[PublishedMessage], error) {
	list, err := history().page(ctx, t, filter, page)
	return list, t.historyError(ctx, err)
}

// Published returns the published messages with a row id or message_id, and their payload if asked and not redacted.
func (t *Tables) Published(ctx context.Context, name Name, payload bool) ([]PublishedMessage, error) {
	messages, err := history().read(ctx, t, name.filter(), mostOfOneName, mostOfNamed(), payload)
	return messages, t.historyError(ctx, err)
}

// PublishedIfKept is Published, and finds nothing if published messages are not kept.
func (t *Tables) PublishedIfKept(ctx context.Context, name Name, payload bool) ([]PublishedMessage, error) {
	if has, err := t.HasHistory(ctx); err != nil || !has {
		return nil, err
	}
	return t.Published(ctx, name, payload)
}

// HasHistory reports whether published messages are kept.
func (t *Tables) HasHistory(ctx context.Context) (has bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	err = t.conn.QueryRow(ctx, `SELECT pg_catalog.to_regclass($1) IS NOT NULL`, t.table.Published().SQL()).Scan(&has)
	return has, err
}

// historyError says what is missing.
func (t *Tables) historyError(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, ErrCursor) {
		return err
	}
	if has, asked := t.HasHistory(ctx); asked == nil && !has {
		return &problem.Problem{
			What: fmt.Sprintf("table %s does not exist", t.table.Published()),
			Fix:  problem.Command(t.table, "setup", "--keep-published", "168h"), Err: ErrNoHistory,
		}
	}
	return t.may(ctx, fmt.Errorf("read the history %s: %w", t.table.Published(), err),
		need{"SELECT", t.table.Published().SQL()})
}

// The first copy of each message: the history also has those of earlier replays.
const replayChoiceSQL = `
SELECT f.id, f.published_at, f.size FROM (
  SELECT DISTINCT ON (r.message_id) r.id, r.published_at, ` + storedSize + ` AS size FROM {published} r WHERE {where}
    ORDER BY r.message_id, r.id, r.published_at) f
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

// Replay says how published messages are sent again.
type Replay struct {
	// Exchange and RoutingKey replace those of the messages; nil: unchanged.
	Exchange, RoutingKey *string
	// PerSecond is the most messages per second; 0: no limit.
	PerSecond float64
	// Batch is the maximum number of rows in a transaction.
	Batch int
	// Dry only counts.
	Dry bool
	// AfterID continues after this id; nil: from the start.
	AfterID *int64
}

// Replayed is the result of a replay.
type Replayed struct {
	Matched int64
	// Count is the number of copies, LastID the id of the message copied last.
	Count, LastID int64
}

type publishedRow struct {
	ID          int64
	PublishedAt pgtype.Timestamptz
	Size        int64
}

func (r publishedRow) size() int64 { return r.Size }

// Replay inserts copies of the published messages that match the filter, oldest first, each batch in one transaction.
// Copies keep their message_id and have the mark. On an error, also one of agreed, done is the result before it.
func (t *Tables) Replay(
	ctx context.Context, filter Filter, how Replay, agreed Agreed, progress Progress,
) (done Replayed, err error) {
	after := int64(math.MinInt64)
	if how.AfterID != nil {
		after = *how.AfterID
	}
	chosen, err := t.choose(ctx, replayChoiceSQL, filter, ofPublished, after)
	if err != nil {
		return done, t.historyError(ctx, err)
	}
	defer chosen.close(ctx)
	done.Matched = chosen.total
	if how.Dry {
		return done, nil
	}
	if err := chosen.agree(agreed); err != nil {
		return done, err
	}
	batch, pace := how.Batch, rate.NewLimiter(rate.Inf, how.Batch)
	if how.PerSecond > 0 {
		batch = min(batch, max(1, int(how.PerSecond/10)))
		pace = rate.NewLimiter(rate.Limit(how.PerSecond), batch)
	}
	err = inBatches(ctx, chosen, batch, progress, func(rows []publishedRow) error {
		if err := pace.WaitN(ctx, len(rows)); err != nil {
			return err
		}
		if err := t.replay(ctx, rows, how); err != nil {
			return err
		}
		done.Count += int64(len(rows))
		done.LastID = rows[len(rows)-1].ID
		return nil
	})
	return done, err
}

func (t *Tables) replay(ctx context.Context, rows []publishedRow, how Replay) error {
	ids, times := make([]int64, len(rows)), make([]pgtype.Timestamptz, len(rows))
	for i, row := range rows {
		ids[i], times[i] = row.ID, row.PublishedAt
	}
	_, err := t.move(ctx, t.replayStatement(), ids, times, how.Exchange, how.RoutingKey)
	if err != nil {
		err = t.may(ctx, fmt.Errorf("replay messages of %s: %w", t.table.Published(), err),
			need{"SELECT", t.table.Published().SQL()}, need{"INSERT", t.table.SQL()})
	}
	return err
}
