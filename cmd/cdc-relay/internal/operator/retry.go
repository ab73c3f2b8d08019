package operator

import (
	"context"
	"fmt"

	"github.com/cdc-relay/cdc-relay/store"
)

// Rejected rows. A row that a relay is publishing is locked.
const retryableRows = `r.available_at IS NOT NULL AND r.attempts > 0`

const retryChoiceSQL = `SELECT r.id, r.message_id, 0::bigint FROM {outbox} r
  WHERE ` + retryableRows + ` AND {where} ORDER BY r.id`

// A due row keeps its time: a relay may still settle the row with that time as the fence. The update removes the trace
// of a claim that was killed, so the mark is stored.
const retryNowSQL = `
WITH free AS (
  SELECT r.id, ` + store.Traced + ` AS traced FROM unnest($1::bigint[], $2::uuid[]) s(id, message_id)
  JOIN {outbox} r ON r.id = s.id AND r.message_id = s.message_id
  WHERE ` + retryableRows + ` ORDER BY r.id FOR UPDATE OF r SKIP LOCKED)
UPDATE {outbox} r SET attempts = 0, available_at = least(r.available_at, clock_timestamp()),
       possible_duplicate = r.possible_duplicate OR f.traced FROM free f WHERE r.id = f.id`

// Retried is the result of RetryNow.
type Retried struct {
	// Due counts the rows that are due now, with attempts 0.
	Due int64
	// Left counts the rows that a relay is publishing.
	Left int64
}

// RetryNow makes waiting retries that match the filter due now, with attempts 0, each batch in one transaction. It
// skips rows that a relay has claimed. With dry it changes nothing. On an error, also one of agreed, done is the result
// before it.
func (t *Tables) RetryNow(
	ctx context.Context, filter Filter, batch int, dry bool, agreed Agreed, progress Progress,
) (done Retried, err error) {
	defer func() {
		if err != nil {
			err = t.may(ctx, fmt.Errorf("retry rows of %s: %w", t.table, err), need{"SELECT, UPDATE", t.table.SQL()})
		}
	}()
	chosen, err := t.choose(ctx, retryChoiceSQL, filter, ofOutbox)
	if err != nil {
		return done, err
	}
	defer chosen.close(ctx)
	if err := chosen.agree(agreed); err != nil {
		return done, err
	}
	err = inBatches(ctx, chosen, batch, progress, func(rows []chosenRow) error {
		changed := int64(len(rows))
		if !dry {
			n, err := t.change(ctx, t.fill(retryNowSQL), columnsOf(rows)...)
			if err != nil {
				return err
			}
			changed = n
		}
		done.Due += changed
		done.Left += int64(len(rows)) - changed
		return nil
	})
	return done, err
}
