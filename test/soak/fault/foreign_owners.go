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
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// foreignOwnerFaults give the slot to a program that is not a relay of the table, or try to. The relays publish from
// the table meanwhile, and must not end the connection of that program.
func foreignOwnerFaults() []Fault {
	return []Fault{
		{
			Name: "postgres-slot-stranger", Duplicates: ifTakenOver,
			About: "another program takes the slot from the relay that streams, as pg_recvlogical would",
			Run:   programTakesSlot,
		},
		{
			Name: "postgres-slot-second-outbox", Duplicates: ifTakenOver,
			About: "a relay of another outbox table is started with the slot of the relay that streams",
			Run:   secondOutboxTriesSlot,
		},
	}
}

// foreignOwnerHold is the minimum time that the program owns the slot.
const foreignOwnerHold = 8 * time.Second

// takeSlotTimeout limits how long a program tries to take the slot before the relays.
const takeSlotTimeout = 20 * time.Second

// terminateOwner ends the process that owns the slot $1, unless its application_name is $2.
const terminateOwner = `SELECT count(pg_terminate_backend(a.pid)) FROM pg_replication_slots s
	JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = $1 AND a.application_name <> $2`

const foreignOwnerName = "pg_recvlogical"

func programTakesSlot(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
	if _, err := w.AwaitLeader(ctx); err != nil {
		return "", err
	}
	config, err := pgconn.ParseConfig(w.Database)
	if err != nil {
		return "", err
	}
	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["application_name"] = foreignOwnerName
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return "", err
	}
	defer func() {
		closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closeCtx)
	}()
	if err := w.startReplication(ctx, conn); err != nil {
		return "", err
	}
	holdCtx, cancel := context.WithTimeout(ctx, max(hold, foreignOwnerHold))
	defer cancel()
	if err := listen(holdCtx, conn); holdCtx.Err() == nil {
		w.Violation(fmt.Sprintf("the connection of another program that owns the slot was ended: %v", err))
	}
	return "", nil
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
func secondOutboxTriesSlot(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
	second := *w
	second.Table = outbox.Table{Schema: w.Table.Schema, Name: w.Table.Name + "_second"}
	second.Slot, second.Publication = w.Slot+"_second", w.Publication+"_second"
	if err := second.setUp(ctx); err != nil {
		return "", err
	}
	times := 0
	for end := time.Now().Add(hold); times == 0 || time.Now().Before(end); times++ {
		if _, err := w.AwaitLeader(ctx); err != nil {
			return "", err
		}
		var ended int
		if err := w.Query(ctx, &ended, terminateOwner, w.Slot, ""); err != nil {
			return "", err
		}
		runCtx, cancel := context.WithTimeout(ctx, takeSlotTimeout)
		err := second.command(runCtx, "run", "--slot", w.Slot, "--publication", second.Publication,
			"--http-addr", "127.0.0.1:0")
		cancel()
		if err == nil || !strings.Contains(err.Error(), refused) {
			return "", fmt.Errorf("a relay of %s with slot %s was not refused: %w", second.Table, w.Slot, err)
		}
	}
	return fmt.Sprintf("refused %d times", times), second.command(ctx, "teardown", "--yes", "--tables",
		"--slot", second.Slot, "--publication", second.Publication)
}
