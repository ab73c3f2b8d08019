package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// The rows that were refused and are not out. One whose lease has not run out is on its way:
// a claim sets possible_duplicate, and a lease is never further away than $1. So what may be
// one is left; if it is none, its time comes within as long anyway.
const retryableRows = `r.available_at IS NOT NULL AND r.attempts > 0`

const notClaimed = `(r.available_at <= (SELECT clock_timestamp()) OR r.available_at > (SELECT clock_timestamp()) + $1::interval
       OR r.possible_duplicate IS NOT TRUE)`

const retryChoiceSQL = `SELECT r.id, r.message_id, ` + notClaimed + ` FROM {outbox} r WHERE ` + retryableRows + ` AND {where} ORDER BY r.id`

// What is due already keeps its time: it may be the fence of a relay that is late to settle it.
const retryNowSQL = `
WITH free AS (
  SELECT r.id FROM unnest($2::bigint[], $3::uuid[]) s(id, message_id) JOIN {outbox} r ON r.id = s.id AND r.message_id = s.message_id
  WHERE ` + retryableRows + ` AND ` + notClaimed + ` ORDER BY r.id FOR UPDATE OF r SKIP LOCKED)
UPDATE {outbox} r SET attempts = 0, available_at = least(r.available_at, clock_timestamp()) FROM free f WHERE r.id = f.id`

// Retried is what came of having retries tried now.
type Retried struct {
	// Due are due now, with all their attempts.
	Due int64
	// Left are on their way, or may be: they come within the lease.
	Left int64
}

// RetryNow makes the waiting retries that the filter picks due now and gives them all their
// attempts, in batches, each of which is whole. A lease is how long a relay may have claimed
// a row for: rows that may be claimed are left alone. With dry nothing is changed. On an
// error the result is what was done until then.
func (o *Operator) RetryNow(ctx context.Context, filter Filter, lease time.Duration, batch int, dry bool, progress Progress) (done Retried, err error) {
	defer func() {
		if err != nil {
			err = o.may(ctx, fmt.Errorf("have retries of %s tried now: %w", o.table, err), need{"SELECT, UPDATE", o.table.SQL()})
		}
	}()
	where, args := filter.where(ofOutbox, []any{lease})
	chosen, err := o.choose(ctx, o.fill(retryChoiceSQL, "{where}", where), args...)
	if err != nil {
		return done, err
	}
	defer chosen.close(ctx)
	for seen := int64(0); ; {
		progress(seen, chosen.total)
		rows, err := take(ctx, chosen, batch, pgx.RowToStructByPos[retryRow])
		if err != nil || len(rows) == 0 {
			return done, err
		}
		seen += int64(len(rows))
		var free []chosenRow
		for _, row := range rows {
			if row.Free {
				free = append(free, chosenRow{row.ID, row.MessageID})
			}
		}
		changed := int64(len(free))
		if !dry {
			if changed, err = o.retryNow(ctx, lease, free); err != nil {
				return done, err
			}
		}
		done.Due += changed
		done.Left += int64(len(rows)) - changed
	}
}

type retryRow struct {
	ID        int64
	MessageID [16]byte
	Free      bool
}

func (o *Operator) retryNow(ctx context.Context, lease time.Duration, rows []chosenRow) (int64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
	defer cancel()
	ids, messageIDs := columnsOf(rows)
	tag, err := o.conn.Exec(ctx, o.fill(retryNowSQL), lease, ids, messageIDs)
	return tag.RowsAffected(), err
}
