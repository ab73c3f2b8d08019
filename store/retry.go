package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Rejected rows. A row that a relay is publishing is locked.
const retryableRows = `r.available_at IS NOT NULL AND r.attempts > 0`

const retryChoiceSQL = `SELECT r.id, r.message_id FROM {outbox} r WHERE ` + retryableRows + ` AND {where} ORDER BY r.id`

// A due row keeps its time: a relay may still settle the row with that time as the fence.
const retryNowSQL = `
WITH free AS (
  SELECT r.id FROM unnest($1::bigint[], $2::uuid[]) s(id, message_id) JOIN {outbox} r ON r.id = s.id AND r.message_id = s.message_id
  WHERE ` + retryableRows + ` ORDER BY r.id FOR UPDATE OF r SKIP LOCKED)
UPDATE {outbox} r SET attempts = 0, available_at = least(r.available_at, clock_timestamp()) FROM free f WHERE r.id = f.id`

// Retried is the result of RetryNow.
type Retried struct {
	// Due counts the rows that are due now, with attempts 0.
	Due int64
	// Left counts the rows that a relay is publishing.
	Left int64
}

// RetryNow makes waiting retries that match the filter due now, with attempts 0, each batch in one transaction. It
// skips rows that a relay has claimed. With dry it changes nothing. On an error, done is the result before it.
func (o *Operator) RetryNow(ctx context.Context, filter Filter, batch int, dry bool, progress Progress) (done Retried, err error) {
	defer func() {
		if err != nil {
			err = o.may(ctx, fmt.Errorf("retry rows of %s: %w", o.table, err), need{"SELECT, UPDATE", o.table.SQL()})
		}
	}()
	where, args := filter.where(ofOutbox, nil)
	chosen, err := o.choose(ctx, o.fill(retryChoiceSQL, "{where}", where), args...)
	if err != nil {
		return done, err
	}
	defer chosen.close(ctx)
	for seen := int64(0); ; {
		progress(seen, chosen.total)
		rows, err := take(ctx, chosen, batch, pgx.RowToStructByPos[chosenRow])
		if err != nil || len(rows) == 0 {
			return done, err
		}
		seen += int64(len(rows))
		changed := int64(len(rows))
		if !dry {
			if changed, err = o.retryNow(ctx, rows); err != nil {
				return done, err
			}
		}
		done.Due += changed
		done.Left += int64(len(rows)) - changed
	}
}

func (o *Operator) retryNow(ctx context.Context, rows []chosenRow) (int64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
	defer cancel()
	ids, messageIDs := columnsOf(rows)
	tag, err := o.conn.Exec(ctx, o.fill(retryNowSQL), ids, messageIDs)
	return tag.RowsAffected(), err
}
