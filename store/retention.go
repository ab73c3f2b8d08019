package store

import (
	"context"
	"fmt"
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
	tag, err := s.pool.Exec(ctx, s.sql.retention, age, most)
	if err != nil {
		err = fmt.Errorf("delete old dead letters of %s: %w", s.table, err)
		return 0, s.use().ExplainDeadLetters(ctx, s.pool, err)
	}
	return tag.RowsAffected(), nil
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
	err = s.pool.QueryRow(ctx, `SELECT `+s.table.RotatePublished().SQL()+`($1::interval)`, keep).Scan(&dropped)
	if err != nil {
		err = fmt.Errorf("keep the partitions of %s: %w", s.table.Published(), err)
		return 0, s.use().ExplainHistory(ctx, s.pool, err)
	}
	return dropped, nil
}
