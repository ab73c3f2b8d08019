package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
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
	streams := postgresWires(services.Replication)(leader)
	for _, stream := range streams {
		stream.BlackHole()
	}
	return leader.Name, func(context.Context) error {
		for _, stream := range streams {
			stream.Resume()
		}
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

func dropPublication(ctx context.Context, w *World, random *rand.Rand, _ time.Duration) (string, fix, error) {
	detail, remedy := "left to the relays", func(context.Context) error { return nil }
	if random.IntN(2) == 0 {
		detail, remedy = "created again by cdc-relay setup", w.setUp
	}
	return detail, remedy, w.Exec(ctx, "DROP PUBLICATION "+outbox.QuoteIdentifier(w.Publication))
}

// foreignOwnerHold is the minimum time that the program owns the slot.
const foreignOwnerHold = 8 * time.Second

// takeSlotTimeout limits how long a program tries to take the slot before the relays.
const takeSlotTimeout = 20 * time.Second

// terminateOwner ends the process that owns the slot $1, unless its application_name is $2.
const terminateOwner = `SELECT count(pg_terminate_backend(a.pid)) FROM pg_replication_slots s
	JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = $1 AND a.application_name <> $2`

const foreignOwnerName = "pg_recvlogical"

// programTakesSlot gives the slot to a program that is not a relay of the table. The relays publish from the table
// meanwhile, and must not end the connection of that program.
func programTakesSlot(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, fix, error) {
	if _, err := w.AwaitLeader(ctx); err != nil {
		return "", nil, err
	}
	config, err := pgconn.ParseConfig(w.Database)
	if err != nil {
		return "", nil, err
	}
	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["application_name"] = foreignOwnerName
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return "", nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	if err := w.startReplication(ctx, conn); err != nil {
		return "", nil, err
	}
	holdCtx, cancel := context.WithTimeout(ctx, max(hold, foreignOwnerHold))
	defer cancel()
	if err := listen(holdCtx, conn); holdCtx.Err() == nil {
		w.Violation(fmt.Sprintf("the connection of another program that owns the slot was ended: %v", err))
	}
	return "", nil, nil
}

// startReplication takes the slot from its owner.
func (w *World) startReplication(ctx context.Context, conn *pgconn.PgConn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, takeSlotTimeout,
		errors.New("the relays were quicker than another program"))
	defer cancel()
	side, err := w.Connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, side)
	options := pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names '" + w.Publication + "'"},
	}
	return poll(ctx, func() (bool, error) {
		var ended int
		if err := side.QueryRow(ctx, terminateOwner, w.Slot, foreignOwnerName).Scan(&ended); err != nil {
			return false, err
		}
		for range 10 { // the server releases the slot a moment later
			err := pglogrepl.StartReplication(ctx, conn, w.Slot, 0, options)
			if err == nil || !pgcode.Is(err, pgerrcode.ObjectInUse) {
				return err == nil, err
			}
		}
		return false, nil
	})
}

// listen reads what the server sends, and answers keepalives that ask for it.
func listen(ctx context.Context, conn *pgconn.PgConn) error {
	for {
		message, err := conn.ReceiveMessage(ctx)
		if err != nil {
			return err
		}
		switch m := message.(type) {
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(m)
		case *pgproto3.CopyData:
			if m.Data[0] != pglogrepl.PrimaryKeepaliveMessageByteID {
				continue
			}
			alive, err := pglogrepl.ParsePrimaryKeepaliveMessage(m.Data[1:])
			if err != nil {
				return err
			}
			if !alive.ReplyRequested {
				continue
			}
			status := pglogrepl.StandbyStatusUpdate{WALWritePosition: alive.ServerWALEnd}
			if err := pglogrepl.SendStandbyStatusUpdate(ctx, conn, status); err != nil {
				return err
			}
		}
	}
}

// refused is how the relay of another outbox ends.
const refused = "has the name of a publication of "

// secondOutboxTriesSlot starts a relay with another --table and the same --slot, each time that the stream of the first
// has ended. It must refuse each time: otherwise, the rows of the first outbox would stay in its slot.
func secondOutboxTriesSlot(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, fix, error) {
	second := *w
	second.Table = outbox.Table{Schema: w.Table.Schema, Name: w.Table.Name + "_second"}
	second.Slot, second.Publication = w.Slot+"_second", w.Publication+"_second"
	if err := second.setUp(ctx); err != nil {
		return "", nil, err
	}
	times := 0
	for end := time.Now().Add(hold); times == 0 || time.Now().Before(end); times++ {
		if _, err := w.AwaitLeader(ctx); err != nil {
			return "", nil, err
		}
		var ended int
		if err := w.Query(ctx, &ended, terminateOwner, w.Slot, ""); err != nil {
			return "", nil, err
		}
		runCtx, cancel := context.WithTimeout(ctx, takeSlotTimeout)
		err := second.command(runCtx, "run", "--slot", w.Slot, "--publication", second.Publication,
			"--http-addr", "127.0.0.1:0")
		cancel()
		if err == nil || !strings.Contains(err.Error(), refused) {
			return "", nil, fmt.Errorf("a relay of %s with slot %s was not refused: %w", second.Table, w.Slot, err)
		}
	}
	return fmt.Sprintf("refused %d times", times), nil, second.command(ctx, "teardown", "--yes", "--tables",
		"--slot", second.Slot, "--publication", second.Publication)
}
