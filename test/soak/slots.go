package soak

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/program"
)

// dropSlot ends the slot's owner and drops the slot before the next relay takes it. It does both in one statement on
// the server: a relay reconnects within a tenth of a second.
func (w *world) dropSlot(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, hangTimeout,
		fmt.Errorf("the slot could not be dropped within %s", hangTimeout))
	defer cancel()
	return w.exec(ctx, fmt.Sprintf(`
DO $$
BEGIN
	LOOP
		BEGIN
			PERFORM pg_drop_replication_slot('%[1]s');
			EXIT;
		EXCEPTION
			WHEN undefined_object THEN EXIT;
			WHEN object_in_use THEN
				PERFORM pg_terminate_backend(active_pid)
				FROM pg_replication_slots WHERE slot_name = '%[1]s' AND active_pid IS NOT NULL;
		END;
		PERFORM pg_sleep(0.002);
	END LOOP;
END $$`, slot))
}

func dropSlotRepeatedly(ctx context.Context, a *attempt) (fix, error) {
	const rounds = 3
	for range rounds {
		if _, err := a.leader(ctx); err != nil {
			return nil, err
		}
		if err := a.dropSlot(ctx); err != nil {
			return nil, err
		}
		program.Pause(ctx, a.upTo(2*a.hold/rounds))
	}
	return nil, nil
}

func dropSlotBehindTransaction(ctx context.Context, a *attempt) (fix, error) {
	rollBack, err := openTransaction(beginWriting)(ctx, a)
	if err == nil {
		err = a.dropSlot(ctx)
	}
	return rollBack, err
}

// loseSlotOf makes the slot lost while the leader cannot read it.
func loseSlotOf(disturb func(*relay) error, repair func(*relay) error) begin {
	return func(ctx context.Context, a *attempt) (fix, error) {
		leader, err := a.leader(ctx)
		if err != nil {
			return nil, err
		}
		if err = disturb(leader); err == nil {
			err = a.loseSlot(ctx)
		}
		return func(context.Context) error { return repair(leader) }, err
	}
}

func (w *world) stopAndLoseSlot(ctx context.Context) error {
	if err := w.stop(ctx); err != nil {
		return err
	}
	return w.loseSlot(ctx)
}

// loseSlot makes Postgres invalidate the slot, which nobody may be reading. It restores the settings before it returns.
func (w *world) loseSlot(ctx context.Context) error {
	if err := w.configure(ctx, "max_slot_wal_keep_size", "1MB"); err != nil {
		return err
	}
	lost := w.writeUntilLost(ctx)
	fixCtx, cancel := fixing(ctx)
	defer cancel()
	return errors.Join(lost, w.configure(fixCtx, "max_slot_wal_keep_size", ""))
}

func (w *world) writeUntilLost(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, hangTimeout,
		fmt.Errorf("the slot was not invalidated within %s", hangTimeout))
	defer cancel()
	return w.on(ctx, func(conn *pgx.Conn) error {
		var start string
		if err := conn.QueryRow(ctx, `SELECT pg_current_wal_lsn()::text`).Scan(&start); err != nil {
			return err
		}
		return program.Poll(ctx, func() (lost bool, err error) {
			for _, statement := range []string{
				`SELECT pg_logical_emit_message(false, 'soak', repeat('x', 1024 * 1024)) FROM generate_series(1, 24)`,
				`SELECT pg_switch_wal()`, `CHECKPOINT`,
			} {
				if _, err := conn.Exec(ctx, statement); err != nil {
					return false, fmt.Errorf("%.30s: %w", statement, err)
				}
			}
			// A live relay may already have replaced the slot.
			const isLost = `SELECT NOT EXISTS (SELECT FROM pg_replication_slots
				WHERE slot_name = $1 AND wal_status <> 'lost' AND restart_lsn < $2::pg_lsn)`
			err = conn.QueryRow(ctx, isLost, slot, start).Scan(&lost)
			return lost, err
		})
	})
}

func dropPublication(ctx context.Context, a *attempt) (fix, error) {
	remedy := func(context.Context) error { return nil }
	if a.random.IntN(2) == 0 {
		a.detail, remedy = "created again by cdc-relay setup", a.setUp
	}
	return remedy, a.exec(ctx, "DROP PUBLICATION "+slot)
}
