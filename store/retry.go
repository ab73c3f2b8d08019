package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// The rows that were rejected. One that somebody has locked is on its way.
const retryableRows = `r.available_at IS NOT NULL AND r.attempts > 0`

const retryChoiceSQL = `SELECT r.id, r.message_id FROM {outbox} r WHERE ` + retryableRows + ` AND {where} ORDER BY r.id`

// What is due already keeps its time: it may be the fence of a relay that is late to settle it.
const retryNowSQL = `
WITH free AS (
  SELECT r.id FROM unnest($1::bigint[], $2::uuid[]) s(id, message_id) JOIN {outbox} r ON r.id = s.id AND r.message_id = s.message_id
  WHERE ` + retryableRows + ` ORDER BY r.id FOR UPDATE OF r SKIP LOCKED)
UPDATE {outbox} r SET attempts = 0, available_at = least(r.available_at, clock_timestamp()) FROM free f WHERE r.id = f.id`

// Retried is what came of having retries tried now.
type Retried struct {
	// Due are due now, with all their attempts.
	Due int64
	// Left are on their way.
	Left int64
}

// RetryNow makes the waiting retries that the filter picks due now and gives them all their
// attempts, in batches, each of which is whole. Rows that a relay has claimed are left alone. With dry nothing is changed.
// On an error the result is what was done until then.
func (o *Operator) RetryNow(ctx context.Context, filter Filter, batch int, dry bool, progress Progress) (done Retried, err error) {
	defer func() {
		if err != nil {
			err = o.may(ctx, fmt.Errorf("have retries of %s tried now: %w", o.table, err), need{"SELECT, UPDATE", o.table.SQL()})
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
