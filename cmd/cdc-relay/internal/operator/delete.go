package operator

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// The rows to delete, in the order of the primary key.
const deleteChoiceSQL = `SELECT r.id, r.message_id, ` + storedSize + ` FROM {outbox} r WHERE {where} ORDER BY r.id`

// A relay locks the rows of a claim, and they are skipped. The condition of unpublishedSQL is read once more when the
// row is locked: its time may have come meanwhile.
const deleteSQL = `
WITH free AS (
  SELECT r.id, ` + unpublishedSQL + ` AS unpublished FROM unnest($1::bigint[], $2::uuid[]) s(id, message_id)
  JOIN {outbox} r ON r.id = s.id AND r.message_id = s.message_id ORDER BY r.id FOR UPDATE OF r SKIP LOCKED)
DELETE FROM {outbox} r USING free f WHERE r.id = f.id RETURNING f.unpublished AND ` + unpublishedSQL

// unpublishedSQL is the condition for rows r that no relay has published, as in outbox_cancel. A relay takes a row with
// a time only when that has come. A streamed row without a time it publishes without a lock, and also when the row is
// deleted before the relay reads its insert.
const unpublishedSQL = `coalesce(r.available_at > clock_timestamp() AND r.possible_duplicate IS NOT TRUE, false)`

// Deleted is the result of Delete.
type Deleted struct {
	// Unpublished counts the deleted rows that no relay has published, or will publish.
	Unpublished int64
	// Uncertain counts the other deleted rows: a relay may have published them, or be publishing them now.
	Uncertain int64
	// Left counts the rows that a session has locked, usually a relay that publishes them. They are not deleted.
	Left int64
}

// Delete deletes the rows of the outbox that match the filter, each batch in one transaction. It skips locked rows. On
// an error, also one of agreed, done is the result before it.
func (t *Tables) Delete(
	ctx context.Context, filter Filter, batch int, agreed Agreed, progress Progress,
) (done Deleted, err error) {
	var refused error
	defer func() {
		if err != nil && refused == nil {
			err = t.may(ctx, fmt.Errorf("delete rows of %s: %w", t.table, err),
				need{"SELECT, UPDATE, DELETE", t.table.SQL()})
		}
	}()
	chosen, err := t.choose(ctx, deleteChoiceSQL, filter, ofOutbox)
	if err != nil {
		return done, err
	}
	defer chosen.close(ctx)
	if refused = chosen.agree(agreed); refused != nil {
		return done, refused
	}
	err = inBatches(ctx, chosen, batch, progress, func(rows []chosenRow) error {
		unpublished, err := t.deleteRows(ctx, rows)
		if err != nil {
			return err
		}
		for _, is := range unpublished {
			if is {
				done.Unpublished++
			} else {
				done.Uncertain++
			}
		}
		done.Left += int64(len(rows) - len(unpublished))
		return nil
	})
	return done, err
}

// deleteRows deletes a batch, and returns unpublishedSQL of each deleted row. Like change, it finishes even if ctx is
// done.
func (t *Tables) deleteRows(ctx context.Context, rows []chosenRow) ([]bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
	defer cancel()
	deleted, err := t.conn.Query(ctx, t.fill(deleteSQL), columnsOf(rows)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(deleted, pgx.RowTo[bool])
}

// CountWaiting counts the rows of the outbox that match a filter without a State.
func (t *Tables) CountWaiting(ctx context.Context, filter Filter) (n int64, err error) {
	n, err = t.count(ctx, filter, ofOutbox, "{outbox}")
	return n, t.reading(ctx, "count rows of", err)
}
