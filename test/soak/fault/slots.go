package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// slotFaults remove what streaming needs. Missed rows are in the table.
func slotFaults() []Fault {
	return []Fault{
		{
			Name: "postgres-slot-dropped", Duplicates: ifTakenOver,
			About: "the slot of the streaming relay is dropped, three times",
			Run:   dropSlotRepeatedly,
		},
		{
			Name: "postgres-slot-dropped-behind-transaction", Duplicates: ifTakenOver,
			About: "the slot is dropped while a transaction is open: creating a new one waits for it",
			Run: func(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
				return "", w.during(ctx, []string{beginWriting}, func() error {
					if err := w.dropSlot(ctx); err != nil {
						return err
					}
					wait(ctx, hold)
					return nil
				})
			},
		},
		{
			Name:  "postgres-slot-lost",
			About: "the slot is invalidated through max_slot_wal_keep_size while no relay runs",
			Run: func(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
				err := w.Stop(ctx)
				if err == nil {
					err = w.loseSlot(ctx)
				}
				return "", errors.Join(err, holdThen(ctx, hold, func(context.Context) error { return w.Start() }))
			},
		},
		{
			Name: "postgres-slot-lost-frozen", Duplicates: inFlight(1), Unmarked: true,
			About: "the slot is invalidated while its owner is frozen by SIGSTOP",
			Run: func(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, error) {
				leader, err := w.AwaitLeader(ctx)
				if err != nil {
					return "", err
				}
				err = leader.Pause()
				if err == nil {
					err = w.loseSlot(ctx)
				}
				resume := func(context.Context) error { return leader.Resume() }
				return leader.Name, errors.Join(err, holdThen(ctx, hold, resume))
			},
		},
		{
			Name: "postgres-slot-lost-blackhole", Duplicates: ifTakenOver,
			About: "the slot is invalidated while the stream delivers nothing",
			Run:   loseSlotInBlackHole,
		},
		{
			Name: "postgres-publication-dropped", Duplicates: ifTakenOver,
			About: "the publication is dropped; the relay creates it again, or a person does after the hold",
			Run:   dropPublication,
		},
	}
}

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

func dropSlotRepeatedly(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, error) {
	const rounds = 3
	for range rounds {
		if _, err := w.AwaitLeader(ctx); err != nil {
			return "", err
		}
		if err := w.dropSlot(ctx); err != nil {
			return "", err
		}
		wait(ctx, time.Duration(random.Int64N(int64(2*hold)/rounds+1)))
	}
	return "", nil
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
		if err := w.awaitStandbys(ctx, conn); err != nil {
			return false, err
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

// awaitStandbys waits until no standby lags, so that the standby's slot is not invalidated instead.
func (w *World) awaitStandbys(ctx context.Context, conn *pgx.Conn) error {
	return poll(ctx, func() (bool, error) {
		var behind bool
		err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_replication_slots
			WHERE slot_type = 'physical' AND restart_lsn < pg_current_wal_lsn())`).Scan(&behind)
		return !behind, err
	})
}

func loseSlotInBlackHole(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, error) {
	leader, err := w.AwaitLeader(ctx)
	if err != nil {
		return "", err
	}
	streams := make([]services.Kind, len(leader.Postgres))
	for i, proxy := range leader.Postgres {
		streams[i] = proxy.Only(services.Replication)
		streams[i].BlackHole()
	}
	err = w.loseSlot(ctx)
	wait(ctx, hold)
	for _, stream := range streams {
		stream.Resume()
	}
	return leader.Name, err
}

func dropPublication(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, error) {
	if err := w.Exec(ctx, "DROP PUBLICATION "+outbox.QuoteIdentifier(w.Publication)); err != nil {
		return "", err
	}
	byPerson := random.IntN(2) == 0
	wait(ctx, hold)
	if !byPerson {
		return "left to the relays", nil
	}
	fixCtx, cancel := fixing(ctx)
	defer cancel()
	return "created again by cdc-relay setup", w.setUp(fixCtx)
}
