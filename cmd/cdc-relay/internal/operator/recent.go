package operator

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const newestWaitingSQL = withLocks + `
SELECT {columns} FROM (
  SELECT r.*, {state} AS state FROM (
    SELECT r.*, ` + lockerSQL + ` AS locked_by FROM (
      SELECT ` + rowColumns + `, r.available_at, r.xmax AS locker FROM {outbox} r ORDER BY r.id DESC LIMIT $1) r) r) r
ORDER BY r.id DESC`

// NewestWaiting returns the rows of the outbox with the highest ids, without payloads. Its cost does not depend on the
// number of rows.
func (t *Tables) NewestWaiting(ctx context.Context, limit int) (newest []Message, err error) {
	sql := t.fill(newestWaitingSQL,
		"{columns}", waitingColumns(false, "r.locked_by", "r.state"), "{state}", stateBy("r.locked_by"))
	err = t.glanceAt(ctx, mostListed(), func(ctx context.Context, tx querier, most string) error {
		rows, err := tx.Query(ctx, strings.ReplaceAll(sql, "{most}", most), limit)
		if err != nil {
			return err
		}
		newest, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Message, error) { return scanWaiting(row) })
		return err
	})
	return newest, t.reading(ctx, "list the newest rows of", err)
}

// The newest ids are nearly those that were published last, and only they have an index.
const publishedSinceSQL = `
SELECT count(*), count(*) FILTER (WHERE n.published_at > (SELECT clock_timestamp()) - $2::interval)
FROM (SELECT r.published_at FROM {published} r ORDER BY {order} LIMIT $1) n`

// PublishedSince counts the messages of the history that were published within this time, among the newest MostCounted
// rows. kept is false if published messages are not kept.
func (t *Tables) PublishedSince(ctx context.Context, within time.Duration) (count Count, kept bool, err error) {
	if kept, err = t.HasHistory(ctx); err != nil || !kept {
		return Count{Precision: Unknown}, kept, err
	}
	const stop = MostCounted + 1
	var read, n int64
	err = t.glance(ctx, func(ctx context.Context, tx querier) error {
		sql := t.fill(publishedSinceSQL, "{order}", history().order)
		return tx.QueryRow(ctx, sql, stop, within).Scan(&read, &n)
	})
	if err != nil {
		return Count{Precision: Unknown}, true, t.historyError(ctx, "count messages of", err)
	}
	if count = counted(n, stop); n < read { // an older row was read, too
		count.Precision = Exact
	}
	return count, true, nil
}
