package store

import (
	"context"
	"time"
)

// Report is what a relay tells in its row of the table of relays.
type Report struct {
	ID, Host, Version, Role string
	PID                     int
	// Settings and State are JSON.
	Settings, State []byte
	// Runs is for how long this relay has run. Rows of its host that nobody wrote since then are of relays before it.
	Runs time.Duration
}

// reportSQL writes the row, deletes those of relays that are gone, and returns the newest id of the outbox.
const reportSQL = `
WITH gone AS (
  DELETE FROM {relay} g WHERE g.seen < now() - '1 day'::interval
    OR g.host = $2::text AND g.seen < now() - greatest($8::interval, '15 seconds'::interval))
INSERT INTO {relay} AS r (id, host, pid, version, role, settings, state)
VALUES ($1::text, $2::text, $3::integer, $4::text, $5::text, $6::text::json, $7::text::json)
ON CONFLICT (id) DO UPDATE SET seen = excluded.seen, role = excluded.role, state = excluded.state,
  since = CASE WHEN r.role = excluded.role THEN r.since ELSE excluded.since END
RETURNING coalesce((
  SELECT pg_catalog.pg_sequence_last_value(c.oid) FROM pg_catalog.pg_class c
  WHERE c.oid = pg_catalog.pg_get_serial_sequence({outbox_literal}, 'id')::regclass::oid), 0)`

// reportTimeout bounds both statements: nothing waits for them.
const reportTimeout = 2 * time.Second

// Report writes the row of a relay, and returns the newest id; 0: unknown. An error of a missing table or privilege has
// a fix.
func (s *Store) Report(ctx context.Context, r Report) (lastID int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	err = s.ask(ctx, "write what this relay does", s.sql.report, []any{
		r.ID, r.Host, r.PID, r.Version, r.Role, string(r.Settings), string(r.State), r.Runs,
	}, &lastID)
	if err != nil {
		err = s.use().ExplainReport(ctx, s.pool, err)
	}
	return lastID, err
}

// Unreport deletes the row of a relay that ends.
func (s *Store) Unreport(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	_, err := s.exec(ctx, "delete the row of this relay", s.sql.unreport, id)
	return err
}
