package store

import (
	"context"
	"time"
)

// Retention deletes old dead letters, oldest first. With {keyless} it keeps those with an ordering key, because their
// key waits for a person.
const retentionSQL = `
DELETE FROM {dead} r USING (
  SELECT d.id, d.message_id FROM {dead} d
  WHERE d.dead_at <= (SELECT clock_timestamp()) - $1::interval AND {keyless} ORDER BY d.dead_at LIMIT $2) s
WHERE r.id = s.id AND r.message_id = s.message_id`

// DeleteDeadLetters deletes at most this many dead letters of at least this age, oldest first. If dead letters block
// keys, it keeps those with an ordering key.
func (s *Store) DeleteDeadLetters(ctx context.Context, age time.Duration, most int) (deleted int64, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	deleted, err = s.exec(ctx, "delete old dead letters of "+s.table.String(), s.sql.retention, age, most)
	if err != nil {
		err = s.use().ExplainDeadLetters(ctx, s.pool, err)
	}
	return deleted, err
}

// CheckDeletesDeadLetters returns a *problem.Problem if the role may not delete dead letters.
func (s *Store) CheckDeletesDeadLetters(ctx context.Context) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.use().CheckDeletesDeadLetters(ctx, s.pool)
}

// RotatePublished creates the partitions of the next days, and drops partitions that are older than keep. It returns
// how many it dropped.
func (s *Store) RotatePublished(ctx context.Context, keep time.Duration) (dropped int, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err = s.ask(ctx, "keep the partitions of "+s.table.Published().String(),
		`SELECT `+s.table.RotatePublished().SQL()+`($1::interval)`, []any{keep}, &dropped)
	if err != nil {
		err = s.use().ExplainHistory(ctx, s.pool, err)
	}
	return dropped, err
}
