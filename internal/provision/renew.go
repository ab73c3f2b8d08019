package provision

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// renewSlot drops a slot that can never deliver again, and recreates one that is far behind. It records the options.
func renewSlot(ctx context.Context, conn *pgconn.PgConn, names *Names) (Change, error) {
	state, err := readOwnSlot(ctx, conn, names.Slot)
	if err != nil || !state.Exists() {
		return Change{}, err
	}
	names.Found = state.Options
	if state.Active() {
		return Change{}, nil
	}
	if why := useless(state, *names); why != "" {
		text, err := dropSlotFor(ctx, conn, names.Slot, why)
		return Change{Event: event.SlotDropped, Text: text}, err
	}
	return recreateSlot(ctx, conn, state)
}

// DropSlot drops a relay's slot that is not in use, and returns one line with the reason; "": nothing to drop.
func DropSlot(ctx context.Context, conn *pgconn.PgConn, names Names, why string) (string, error) {
	state, err := readOwnSlot(ctx, conn, names.Slot)
	if err != nil || !state.Exists() || state.Active() {
		return "", err
	}
	return dropSlotFor(ctx, conn, names.Slot, why)
}

func dropSlotFor(ctx context.Context, conn *pgconn.PgConn, name, why string) (string, error) {
	if err := dropSlot(ctx, conn, name); err != nil {
		return "", err
	}
	return fmt.Sprintf("dropped slot %s: %s", name, why), nil
}

const (
	// farBehind is the retained WAL, in bytes, from which a slot is recreated. The server reads about 250 MB per second
	// before it sends new rows.
	farBehind = 256 << 20
	// briefly is how long recreating a slot may wait for open transactions.
	briefly = 300 * time.Millisecond
)

// recreateSlot recreates a free slot that is far behind; the table has the rows of the skipped WAL. It keeps a failover
// slot, because a standby has a copy of it, and one that a copy would not equal.
func recreateSlot(ctx context.Context, conn *pgconn.PgConn, old slot.Slot) (Change, error) {
	name := old.Name
	if old.RetainedBytes < farBehind || old.Failover || old.TwoPhase {
		return Change{}, nil
	}
	behind := fmt.Sprintf("%d MB of WAL behind", old.RetainedBytes>>20)
	// First create a temporary spare slot, then drop the old slot: a copy of the spare one waits for no transaction.
	// The spare slot ends with this connection, or with an error on it.
	err := createSlot(ctx, conn, name,
		fmt.Sprintf("SELECT pg_catalog.pg_create_logical_replication_slot(%s, '%s', true)", spareName, slot.Plugin),
		briefly)
	switch {
	case conn.IsClosed():
		return Change{}, err
	case err != nil:
		detail := fmt.Sprintf("slot %s is %s and cannot be recreated now", name, behind)
		return Change{event.SlotBehind, detail, err}, nil
	}
	for _, sql := range []string{
		slot.DropSQL(name),
		fmt.Sprintf("SELECT pg_catalog.pg_copy_logical_replication_slot(%s, %s, false)",
			spareName, outbox.QuoteLiteral(name)),
		"SELECT pg_catalog.pg_drop_replication_slot(" + spareName + ")",
	} {
		_, err := slot.Query(ctx, conn, sql)
		if pgcode.Is(err, pgerrcode.ObjectInUse, pgerrcode.DuplicateObject, pgerrcode.UndefinedObject) {
			return Change{}, nil // another relay was faster
		}
		if err != nil {
			return Change{}, fmt.Errorf("recreate slot %s: %w", name, err)
		}
	}
	return Change{Event: event.SlotRecreated, Text: fmt.Sprintf("recreated slot %s: it was %s", name, behind)}, nil
}

// spareName is the name of a slot of this connection, as SQL.
const spareName = "'cdc_relay_spare_' || pg_backend_pid()::text"
