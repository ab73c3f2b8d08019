package store

import "context"

// Waiting are rows that may leave now.
type Waiting struct {
	// Rows counts up to a thousand of each kind: due ones, those without a time, and the first ones of their keys.
	Rows int
	// First is the smallest id among them.
	First int64
}

const waitingSQL = `
WITH RECURSIVE heads AS (
  (SELECT r.ordering_key, r.id FROM {outbox} r WHERE r.ordering_key >= '' ORDER BY r.ordering_key, r.id LIMIT 1)
  UNION ALL
  SELECT n.ordering_key, n.id FROM heads h CROSS JOIN LATERAL (SELECT r.ordering_key, r.id FROM {outbox} r
    WHERE r.ordering_key > h.ordering_key ORDER BY r.ordering_key, r.id LIMIT 1) n)
SELECT count(*), coalesce(pg_catalog.min(w.id), 0) FROM (
  (SELECT r.id FROM {outbox} r
   WHERE r.available_at <= statement_timestamp() AND r.id <= $1 AND r.ordering_key IS NULL
     AND r.schema_version <= {version}{and_of_shard} ORDER BY r.available_at, r.id LIMIT 1000)
  UNION ALL
  (SELECT r.id FROM {outbox} r
   WHERE r.id <= $1 AND r.ordering_key IS NULL AND r.available_at IS NULL
     AND r.schema_version <= {version}{and_of_shard} ORDER BY r.id LIMIT 1000)
  UNION ALL
  (SELECT r.id FROM (SELECT * FROM heads{where_of_shard}) h JOIN {outbox} r ON r.id BETWEEN h.id AND h.id
   WHERE r.id <= $1 AND ` + isReady + ` LIMIT 1000)) w`

// Waiting counts the rows with ids up to a limit that may leave now, also if a session has locked them.
func (s *Store) Waiting(ctx context.Context, upTo int64) (w Waiting, err error) {
	return w, s.ask(ctx, "count the due rows of "+s.table.String(), s.sql.waiting, []any{upTo}, &w.Rows, &w.First)
}
