package replication

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// readyName returns the application_name of a relay that waits for the slot and can publish. Other relays read it in
// pg_stat_activity.
func readyName(slotName string) string {
	const longest = 63 // bytes; the server cuts longer names
	name := "cdc-relay ready for " + slotName
	return name[:min(len(name), longest)]
}

// SetReady tells the other relays whether this one could publish if it owned the slot.
func (s *Stream) SetReady(ctx context.Context, ready bool) error {
	name := slot.Application(s.source.Table)
	if ready {
		name = readyName(s.source.Slot)
	}
	if _, err := slot.Query(ctx, s.conn, "SET application_name = "+outbox.QuoteLiteral(name)); err != nil {
		return fmt.Errorf("set application_name: %w", err)
	}
	return nil
}

// ReadyStandby reports whether another relay waits for the slot that can publish. It ignores one that has not looked at
// the slot for five seconds, if the role may see that.
func ReadyStandby(ctx context.Context, conn *pgconn.PgConn, slotName string) (bool, error) {
	rows, err := slot.Query(ctx, conn, `
SELECT FROM pg_catalog.pg_stat_activity
WHERE application_name = `+outbox.QuoteLiteral(readyName(slotName))+` AND datname = current_database()
  AND pid <> pg_backend_pid()
  AND coalesce(state_change > clock_timestamp() - interval '5 s', true) LIMIT 1`)
	if err != nil {
		return false, fmt.Errorf("look for a standby of slot %s: %w", slotName, err)
	}
	return len(rows) > 0, nil
}
