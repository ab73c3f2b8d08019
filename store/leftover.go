package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// leftoverSQL tells what the rows of a batch are now: whether each is in the outbox, whether it has the time with which
// it was published, and whether it is a dead letter.
const leftoverSQL = `
SELECT s.nth, r.id IS NOT NULL, r.id IS NOT NULL AND r.available_at IS NOT DISTINCT FROM s.available_at,
       EXISTS (SELECT FROM {dead} r WHERE ` + sameRow + `)
FROM unnest($1::bigint[], $2::uuid[], $3::timestamptz[]) WITH ORDINALITY s(id, message_id, available_at, nth)
LEFT JOIN {outbox} r ON ` + sameRow

// leftover is what a row is that a statement did not change.
type leftover struct {
	there, unchanged, dead bool
}

// askAbout sorts the rows that no statement has changed. On an error, they are in no list.
func (s *Store) askAbout(ctx context.Context, left []outbox.Settlement, into *Settled) error {
	if len(left) == 0 {
		return nil
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, _ := s.pool.Query(ctx, s.sql.leftover, settleArgs(left)[:3]...) // its error is also that of the rows
	found := make([]leftover, len(left))
	var nth int64
	var is leftover
	_, err := pgx.ForEachRow(rows, []any{&nth, &is.there, &is.unchanged, &is.dead}, func() error {
		found[nth-1] = is
		return nil
	})
	if err != nil {
		return fmt.Errorf("find %d rows of %s: %w", len(left), s.table, err)
	}
	for i, one := range left {
		into.addLeftover(one, found[i])
	}
	return nil
}

// addLeftover adds a row to the list that says why no statement has changed it.
func (s *Settled) addLeftover(one outbox.Settlement, is leftover) {
	action := one.Decision.Action
	one.Locked = one.Locked && is.there
	switch {
	case one.Locked:
		s.Locked = append(s.Locked, one)
	case is.there && (is.unchanged || action == outbox.Delete): // a delete needs no time
		s.Kept = append(s.Kept, one)
	case is.dead && one.Tried && action == outbox.DeadLetter: // by a try without an answer
		s.Done = append(s.Done, one)
	default:
		s.Gone = append(s.Gone, one)
	}
}
