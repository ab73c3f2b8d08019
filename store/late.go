package store

import (
	"context"
	"time"
)

// mostLate limits the rows of one statement.
const mostLate = 1000

// lateSQL makes retries due that are later than any retry may be, with the mark: while the clock was ahead, they may
// have left. Rows that were never rejected are scheduled, and an infinite time is a person's.
const lateSQL = `
WITH late AS (
  SELECT r.id, r.message_id FROM {outbox} r
  WHERE r.available_at > clock_timestamp() + $1::interval AND r.available_at < 'infinity'
        AND r.attempts > 0{and_of_shard}
  ORDER BY r.available_at DESC LIMIT $2 FOR UPDATE SKIP LOCKED)
UPDATE {outbox} r SET available_at = clock_timestamp(), possible_duplicate = true FROM late s WHERE ` + sameRow

// HastenRetries makes retries due that would wait longer than this: the server's clock was ahead when they got it.
// It returns how many.
func (s *Store) HastenRetries(ctx context.Context, within time.Duration) (hastened int64, err error) {
	for more := true; more && err == nil; {
		var rows int64
		rows, err = s.exec(ctx, "look for late retries in "+s.table.String(), s.sql.late, within, mostLate)
		hastened += rows
		more = rows == mostLate
	}
	return hastened, err
}
