package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Slot is a replication slot and who holds it.
type Slot struct {
	Exists bool
	// Held tells that a relay streams. What is known of it may be hidden from the role.
	Held        bool
	HolderPID   int32
	Application *string
	Client      *string // address and port; nil: hidden, or a Unix socket
	HeldSince   time.Time
	// LagBytes is the WAL that the holder has not confirmed, RetainedBytes what the slot keeps
	// from being removed.
	LagBytes, RetainedBytes *int64
	// Lag is how long the newest confirmed WAL took to be confirmed; where nobody holds the
	// slot, since when that is so (from Postgres 17 on); nil: unknown.
	Lag *time.Duration
	// WALStatus is reserved, extended, unreserved or lost; SafeBytes how much more WAL may be
	// written before it is lost, nil: no limit is set.
	WALStatus *string
	SafeBytes *int64
}

// Columns that not all versions have are taken from the row as JSON. A walsender that has
// nothing to send reports no lag. Who makes the slot does not hold it yet.
const holderSQL = `
SELECT s.active_pid IS NOT NULL AND s.confirmed_flush_lsn IS NOT NULL, coalesce(s.active_pid, 0), a.application_name,
       host(a.client_addr) || coalesce(':' || nullif(a.client_port, -1), ''), a.backend_start,
       greatest(now.lsn - s.confirmed_flush_lsn, 0)::bigint, greatest(now.lsn - s.restart_lsn, 0)::bigint,
       CASE WHEN s.active_pid IS NULL THEN clock_timestamp() - (to_jsonb(s) ->> 'inactive_since')::timestamptz
            WHEN now.lsn <= s.confirmed_flush_lsn THEN '0'
            WHEN a.pid IS NOT NULL THEN coalesce(r.flush_lag, '0') END,
       s.wal_status, s.safe_wal_size
FROM pg_catalog.pg_replication_slots s
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid
LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid
CROSS JOIN (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END AS lsn) now
WHERE s.slot_name = $1`

// Slot looks at the slot.
func (o *Operator) Slot(ctx context.Context, name string) (s Slot, err error) {
	err = o.glance(ctx, func(ctx context.Context, tx querier) error {
		var since pgtype.Timestamptz
		var lag pgtype.Interval
		err := tx.QueryRow(ctx, holderSQL, name).Scan(&s.Held, &s.HolderPID, &s.Application, &s.Client, &since,
			&s.LagBytes, &s.RetainedBytes, &lag, &s.WALStatus, &s.SafeBytes)
		if err == pgx.ErrNoRows {
			return nil
		}
		s.Exists, s.HeldSince = err == nil, fromColumn(since)
		if lag.Valid {
			d := time.Duration(lag.Microseconds)*time.Microsecond + time.Duration(lag.Days)*24*time.Hour
			s.Lag = &d
		}
		return err
	})
	if err != nil {
		return s, fmt.Errorf("look at slot %s: %w", name, err)
	}
	return s, nil
}
