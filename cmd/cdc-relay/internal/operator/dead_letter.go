package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgtime"
)

// DeadMessage is a dead letter.
type DeadMessage struct {
	StoredMessage
	Reason string
	DeadAt time.Time
}

func deadLetters() newest[DeadMessage] {
	return newest[DeadMessage]{
		of:    ofDeadLetters,
		from:  "{dead}",
		own:   "r.failure_reason, r.dead_at",
		shown: shownText("r.failure_reason") + ", r.dead_at",
		order: "r.dead_at DESC, r.id DESC",
		after: "(r.dead_at, r.id) < (%[1]s::timestamptz, %[2]s)",
		scan: func(row pgx.CollectableRow, died *pgtype.Timestamptz, more ...any) (letter DeadMessage, err error) {
			letter.StoredMessage, err = scanStored(row, append([]any{&letter.Reason, died}, more...)...)
			letter.DeadAt = pgtime.FromRequired(*died)
			return letter, err
		},
	}
}

// DeadLetters returns a page of the dead letters that match the filter, newest first, without payloads. Its cost does
// not depend on their number, unless the filter names messages. ErrCursor: the cursor is of another list.
func (t *Tables) DeadLetters(ctx context.Context, filter Filter, page Page) (Listing[DeadMessage], error) {
	list, err := deadLetters().page(ctx, t, filter, page)
	return list, t.reading(ctx, "list dead letters of", err)
}

// DeadLetter returns the dead letters with a row id or message_id, and their payload if asked and not redacted. Several
// may have the same id if the sequence was restarted.
func (t *Tables) DeadLetter(ctx context.Context, name Name, payload bool) ([]DeadMessage, error) {
	letters, err := deadLetters().read(ctx, t, name.filter(), mostOfOneName, mostOfNamed(), payload)
	return letters, t.reading(ctx, "read dead letters of", err)
}

// mostOfOneName bounds the rows with one id.
const mostOfOneName = 100

// CountDeadLetters counts the dead letters that match a filter.
func (t *Tables) CountDeadLetters(ctx context.Context, filter Filter) (n int64, err error) {
	n, err = t.count(ctx, filter, ofDeadLetters, "{dead}")
	return n, t.reading(ctx, "count dead letters of", err)
}

// count counts the rows of a table that match a filter.
func (t *Tables) count(ctx context.Context, filter Filter, of kind, from string) (n int64, err error) {
	where, args := filter.where(of, nil)
	err = t.look(ctx, func(ctx context.Context, tx querier) error {
		sql := t.fill(`SELECT count(*) FROM `+from+` r WHERE {where}`, "{where}", where)
		return tx.QueryRow(ctx, sql, args...).Scan(&n)
	})
	return n, err
}

// The rows to purge, in the order of the primary key.
const purgeChoiceSQL = `SELECT r.id, r.message_id, ` + storedSize + ` FROM {dead} r WHERE {where}
  ORDER BY r.id, r.message_id`

const purgeSQL = `
DELETE FROM {dead} r USING unnest($1::bigint[], $2::uuid[]) s(id, message_id)
WHERE r.id = s.id AND r.message_id = s.message_id`

// Purge deletes the dead letters that match the filter, each batch in one transaction. If agreed returns an error,
// Purge returns that error. Later dead letters are not deleted. On another error, deleted counts the rows deleted
// before it.
func (t *Tables) Purge(
	ctx context.Context, filter Filter, batch int, agreed Agreed, progress Progress,
) (deleted int64, err error) {
	var refused error
	defer func() {
		if err != nil && refused == nil {
			err = t.may(ctx, fmt.Errorf("purge dead letters of %s: %w", t.table, err),
				need{"SELECT, DELETE", t.table.DeadLetter().SQL()})
		}
	}()
	chosen, err := t.choose(ctx, purgeChoiceSQL, filter, ofDeadLetters)
	if err != nil {
		return 0, err
	}
	defer chosen.close(ctx)
	if refused = chosen.agree(agreed); refused != nil {
		return 0, refused
	}
	err = inBatches(ctx, chosen, batch, progress, func(rows []chosenRow) error {
		n, err := t.change(ctx, t.fill(purgeSQL), columnsOf(rows)...)
		deleted += n
		return err
	})
	return deleted, err
}
