package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"golang.org/x/time/rate"

	"github.com/cdc-relay/cdc-relay/internal/pgtime"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// RotatePublished creates the partitions of the next days, and drops partitions that are older than keep. It returns
// how many it dropped.
func (s *Store) RotatePublished(ctx context.Context, keep time.Duration) (dropped int, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err = s.pool.QueryRow(ctx, `SELECT `+s.table.RotatePublished().SQL()+`($1::interval)`, keep).Scan(&dropped)
	if err != nil {
		return 0, fmt.Errorf("keep the partitions of %s: %w", s.table.Published(), err)
	}
	return dropped, nil
}

// PublishedMessage is a message of the history.
type PublishedMessage struct {
	StoredMessage
	PublishedAt time.Time
}

// ErrNoHistory is returned if published messages are not kept.
var ErrNoHistory = errors.New("published messages are not kept")

// Newest first within a page, with the last row that was read.
const listPublishedSQL = `
SELECT {columns}, r.published_at, coalesce({where}, false), r.nth = {looked} FROM (
  SELECT ` + historyColumns + `, r.published_at, row_number() OVER (ORDER BY r.id DESC, r.published_at DESC) AS nth
  FROM {published} r WHERE {from} ORDER BY r.id DESC, r.published_at DESC LIMIT {looked}) r
WHERE ({where}) OR r.nth = {looked} ORDER BY r.id DESC, r.published_at DESC LIMIT {limit}`

// byPublished is the order of the history.
const byPublished = "r.published_at"

// PublishedMessages returns a page of the history that matches the filter, newest rows first, without payloads. Its
// cost does not depend on their number, unless the filter names messages. ErrCursor: the cursor is of another list.
// ErrNoHistory: there is no history.
func (o *Operator) PublishedMessages(ctx context.Context, filter Filter, page Page) (list Listing[PublishedMessage], err error) {
	if len(filter.IDs)+len(filter.MessageIDs) > 0 {
		list.Rows, err = o.published(ctx, filter, page.Limit, false)
		return list, err
	}
	after, err := parseCursor(page.After, byPublished)
	if err != nil {
		return list, err
	}
	where, args := filter.where(ofPublished, nil)
	from := "true"
	if after != nil && after.At != nil {
		args = append(args, after.ID, *after.At)
		from = fmt.Sprintf("(r.id, r.published_at) < ($%d, $%d::timestamptz)", len(args)-1, len(args))
	}
	sql := o.fill(listPublishedSQL, "{columns}", storedColumns(false), "{where}", where, "{from}", from,
		"{looked}", fmt.Sprint(MostLooked), "{limit}", fmt.Sprint(page.Limit+1))
	err = o.glance(ctx, func(ctx context.Context, tx querier) (err error) {
		list, err = collectPage(ctx, tx, sql, args, page.Limit, func(row pgx.CollectableRow) (m PublishedMessage, at place, err error) {
			var published pgtype.Timestamptz
			m, err = scanPublished(row, &published, &at.matches, &at.last)
			at.cursor = cursor{List: byPublished, At: timeText(published), ID: m.ID}
			return m, at, err
		})
		return err
	})
	return list, o.historyError(ctx, err)
}

// Published returns the published messages with a row id or message_id, and their payload if asked and not redacted.
func (o *Operator) Published(ctx context.Context, name Name, payload bool) ([]PublishedMessage, error) {
	return o.published(ctx, name.filter(), mostOfOneName, payload)
}

// HasHistory reports whether published messages are kept.
func (o *Operator) HasHistory(ctx context.Context) (has bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	err = o.conn.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, o.table.Published().SQL()).Scan(&has)
	return has, err
}

func (o *Operator) published(ctx context.Context, filter Filter, limit int, payload bool) (messages []PublishedMessage, err error) {
	where, args := filter.where(ofPublished, nil)
	sql := o.fill(`SELECT {columns}, r.published_at FROM {published} r WHERE {where} ORDER BY r.id DESC, r.published_at DESC LIMIT {limit}`,
		"{columns}", storedColumns(payload), "{where}", where, "{limit}", fmt.Sprint(limit))
	find := o.look
	if len(filter.MessageIDs) == 0 {
		find = o.glance
	}
	err = find(ctx, func(ctx context.Context, tx querier) error {
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		messages, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (PublishedMessage, error) {
			return scanPublished(row, new(pgtype.Timestamptz))
		})
		return err
	})
	return messages, o.historyError(ctx, err)
}

func scanPublished(row pgx.CollectableRow, published *pgtype.Timestamptz, more ...any) (PublishedMessage, error) {
	var m PublishedMessage
	stored, err := scanStored(row, append([]any{published}, more...)...)
	m.StoredMessage, m.PublishedAt = stored, pgtime.FromColumn(*published)
	return m, err
}

// historyError says what is missing.
func (o *Operator) historyError(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, ErrCursor) {
		return err
	}
	if has, asked := o.HasHistory(ctx); asked == nil && !has {
		return &problem.Problem{
			What: fmt.Sprintf("table %s does not exist: published messages are not kept", o.table.Published()),
			Fix:  o.table.Command("setup") + " --keep-published 168h  # and run with --keep-published 168h", Err: ErrNoHistory,
		}
	}
	return o.may(ctx, fmt.Errorf("read the history %s: %w", o.table.Published(), err), need{"SELECT", o.table.Published().SQL()})
}

const replayChoiceSQL = `SELECT r.id, r.published_at FROM {published} r WHERE {where} ORDER BY r.id, r.published_at`

// A replayed message is a new row, marked and due, so that the stream does not publish it directly. It does not expire,
// and is not coalesced.
const replaySQL = `
INSERT INTO {outbox} (message_id, exchange, routing_key, ordering_key, payload, payload_bytes, headers, properties, redacted_payload,
  schema_version, created_at, max_attempts, possible_duplicate, available_at)
SELECT r.message_id, coalesce($3::text, r.exchange), coalesce($4::text, r.routing_key), r.ordering_key, r.payload, r.payload_bytes, r.headers,
  r.properties, r.redacted_payload, r.schema_version, r.created_at, r.max_attempts, true, clock_timestamp()
FROM unnest($1::bigint[], $2::timestamptz[]) WITH ORDINALITY s(id, published_at, nth)
JOIN {published} r ON r.id = s.id AND r.published_at = s.published_at ORDER BY s.nth`

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
}

type publishedRow struct {
	ID          int64
	PublishedAt pgtype.Timestamptz
}

// Replay inserts copies of the published messages that match the filter, oldest first, each batch in one transaction.
// Copies keep their message_id and have the mark. On an error, replayed counts the messages before it.
func (o *Operator) Replay(ctx context.Context, filter Filter, how Replay, progress Progress) (replayed, matched int64, err error) {
	where, args := filter.where(ofPublished, nil)
	chosen, err := o.choose(ctx, o.fill(replayChoiceSQL, "{where}", where), args...)
	if err != nil {
		return 0, 0, o.historyError(ctx, err)
	}
	defer chosen.close(ctx)
	if how.Dry {
		return 0, chosen.total, nil
	}
	batch, pace := how.Batch, rate.NewLimiter(rate.Inf, how.Batch)
	if how.PerSecond > 0 {
		batch = min(batch, max(1, int(how.PerSecond/10)))
		pace = rate.NewLimiter(rate.Limit(how.PerSecond), batch)
	}
	for {
		progress(replayed, chosen.total)
		rows, err := take(ctx, chosen, batch, pgx.RowToStructByPos[publishedRow])
		if err != nil || len(rows) == 0 {
			return replayed, chosen.total, err
		}
		if err := pace.WaitN(ctx, len(rows)); err != nil {
			return replayed, chosen.total, err
		}
		n, err := o.replay(ctx, rows, how)
		replayed += n
		if err != nil {
			err = o.may(ctx, fmt.Errorf("replay messages of %s: %w", o.table.Published(), err),
				need{"SELECT", o.table.Published().SQL()}, need{"INSERT", o.table.SQL()})
			return replayed, chosen.total, err
		}
	}
}

func (o *Operator) replay(ctx context.Context, rows []publishedRow, how Replay) (int64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
	defer cancel()
	ids, times := make([]int64, len(rows)), make([]pgtype.Timestamptz, len(rows))
	for i, row := range rows {
		ids[i], times[i] = row.ID, row.PublishedAt
	}
	tag, err := o.conn.Exec(ctx, o.fill(replaySQL), ids, times, how.Exchange, how.RoutingKey)
	return tag.RowsAffected(), err
}
