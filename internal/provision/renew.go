package provision

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/slot"
)

const (
	// farBehind is the retained WAL, in bytes, from which a slot is recreated. The server reads about 250 MB per second
	// before it sends new rows.
	farBehind = 256 << 20
	// briefly is how long creating a slot may wait for open transactions.
	briefly = 300 * time.Millisecond
)

// renewSlot drops a free slot that can never deliver again, or that is far behind. It records the options.
func renewSlot(ctx context.Context, conn *pgconn.PgConn, names *Names) (string, error) {
	state, err := readOwnSlot(ctx, conn, names.Slot)
	if err != nil || !state.Exists() {
		return "", err
	}
	names.Found = state.Options
	if state.Active() {
		return "", nil
	}
	why := useless(state, *names)
	// A standby has a copy of a failover slot.
	behind := state.RetainedBytes >= farBehind && !state.Failover
	if why == "" && behind && createsBriefly(ctx, conn) {
		why = fmt.Sprintf("%d MB of WAL behind", state.RetainedBytes>>20)
	}
	if why == "" {
		return "", nil
	}
	if err := dropSlot(ctx, conn, names.Slot); err != nil {
		return "", err
	}
	return fmt.Sprintf("dropped slot %s: %s", names.Slot, why), nil
}

// createsBriefly reports whether the server has room for another slot, and no open transaction delays it.
func createsBriefly(ctx context.Context, conn *pgconn.PgConn) bool {
	const name = "'cdc_relay_spare_' || pg_backend_pid()::text"
	create := fmt.Sprintf("SELECT pg_catalog.pg_create_logical_replication_slot(%s, '%s', true)", name, slot.Plugin)
	if createSlot(ctx, conn, name, create, briefly) != nil {
		return false
	}
	_, err := slot.Query(ctx, conn, "SELECT pg_catalog.pg_drop_replication_slot("+name+")")
	return err == nil
}
