package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// dropSlot ends the slot's owner and drops the slot before the next relay takes it. It does both in one statement on
// the server: a relay reconnects within a tenth of a second.
func (w *World) dropSlot(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, hangTimeout,
		fmt.Errorf("slot %s could not be dropped within %s", w.Slot, hangTimeout))
	defer cancel()
	conn, err := w.Connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	_, err = conn.Exec(ctx, fmt.Sprintf(`
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
END $$`, w.Slot))
	return err
}

func dropSlotRepeatedly(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, fix, error) {
	const rounds = 3
	for range rounds {
		if _, err := w.AwaitLeader(ctx); err != nil {
			return "", nil, err
		}
		if err := w.dropSlot(ctx); err != nil {
			return "", nil, err
		}
		wait(ctx, time.Duration(random.Int64N(int64(2*hold)/rounds+1)))
	}
	return "", nil, nil
}

func dropSlotBehindTransaction(
	ctx context.Context, w *World, random *rand.Rand, hold time.Duration,
) (string, fix, error) {
	detail, rollBack, err := transaction(beginWriting, "")(ctx, w, random, hold)
	if err == nil {
		err = w.dropSlot(ctx)
	}
	return detail, rollBack, err
}

func loseSlotOfNobody(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
	err := w.Stop(ctx)
	if err == nil {
		err = w.loseSlot(ctx)
	}
	return "", w.start, err
}

func loseSlotOfFrozen(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
	leader, err := w.AwaitLeader(ctx)
	if err != nil {
		return "", nil, err
	}
	if err = leader.Pause(); err == nil {
		err = w.loseSlot(ctx)
	}
	return leader.Name, leader.resume, err
}

func loseSlotInBlackHole(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
	leader, err := w.AwaitLeader(ctx)
	if err != nil {
		return "", nil, err
	}
	stream := leader.Postgres.Only(services.Replication)
	stream.BlackHole()
	return leader.Name, func(context.Context) error {
		stream.Resume()
		return nil
	}, w.loseSlot(ctx)
}

// loseSlot makes Postgres invalidate the slot, which nobody may be reading. It restores the settings before it returns.
func (w *World) loseSlot(ctx context.Context) error {
	if err := w.configure(ctx, "max_slot_wal_keep_size", "1MB"); err != nil {
		return err
	}
	lost := w.writeUntilLost(ctx)
	fixCtx, cancel := fixing(ctx)
	defer cancel()
	return errors.Join(lost, w.configure(fixCtx, "max_slot_wal_keep_size", ""))
}

func (w *World) writeUntilLost(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, hangTimeout,
		fmt.Errorf("slot %s was not invalidated within %s", w.Slot, hangTimeout))
	defer cancel()
	conn, err := w.Connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	var start string
	if err := conn.QueryRow(ctx, `SELECT pg_current_wal_lsn()::text`).Scan(&start); err != nil {
		return err
	}
	return poll(ctx, func() (bool, error) {
		for _, statement := range []string{
			`SELECT pg_logical_emit_message(false, 'cdc-relay-soak', repeat('x', 1024 * 1024))
			FROM generate_series(1, 24)`,
			`SELECT pg_switch_wal()`,
		} {
			if _, err := conn.Exec(ctx, statement); err != nil {
				return false, fmt.Errorf("%.30s: %w", statement, err)
			}
		}
		if _, err := conn.Exec(ctx, `CHECKPOINT`); err != nil {
			return false, fmt.Errorf("checkpoint: %w", err)
		}
		// A live relay may already have replaced the slot.
		const isLost = `SELECT NOT EXISTS (SELECT FROM pg_replication_slots
			WHERE slot_name = $1 AND wal_status <> 'lost' AND restart_lsn < $2::pg_lsn)`
		var lost bool
		err := conn.QueryRow(ctx, isLost, w.Slot, start).Scan(&lost)
		return lost, err
	})
}

func dropPublication(ctx context.Context, w *World, random *rand.Rand, _ time.Duration) (string, fix, error) {
	detail, remedy := "left to the relays", func(context.Context) error { return nil }
	if random.IntN(2) == 0 {
		detail, remedy = "created again by cdc-relay setup", w.setUp
	}
	return detail, remedy, w.Exec(ctx, "DROP PUBLICATION "+outbox.QuoteIdentifier(w.Publication))
}
