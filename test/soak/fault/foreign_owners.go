package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// foreignOwnerFaults give the slot to a program that is not a relay of the table. The relays publish from the table
// meanwhile, and must not end that program's connection.
func foreignOwnerFaults() []Fault {
	return []Fault{
		{
			Name: "postgres-slot-stranger", Needs: Superuser, Duplicates: ifTakenOver,
			About: "another program takes the slot from the relay that streams, as pg_recvlogical would",
			Run:   programTakesSlot,
		},
		{
			Name: "postgres-slot-second-outbox", Needs: OwnPostgres | Superuser, Duplicates: ifTakenOver,
			About: "a relay of another outbox table takes the slot from the relay that streams",
			Run:   secondOutboxTakesSlot,
		},
	}
}

// foreignOwnerHold is the minimum time that the program owns the slot: the relays publish from the table after five
// seconds.
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

// secondOutboxTakesSlot runs a relay with another --table and the same --slot. Nobody inserts into that table.
func secondOutboxTakesSlot(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (detail string, err error) {
	if _, err := w.AwaitLeader(ctx); err != nil {
		return "", err
	}
	second := *w
	second.Table = outbox.Table{Schema: w.Table.Schema, Name: w.Table.Name + "_second"}
	if err := second.setUp(ctx); err != nil {
		return "", err
	}
	relay, err := newRelay(&second, "second-outbox")
	if err != nil {
		return "", err
	}
	defer func() {
		for _, proxy := range append(relay.Postgres, relay.RabbitMQ...) {
			proxy.Close()
		}
	}()
	if err := relay.Start(); err != nil {
		return "", err
	}
	defer func() {
		fixCtx, cancel := fixing(ctx)
		defer cancel()
		err = errors.Join(err, relay.Stop(fixCtx))
	}()
	if err := w.giveSlotTo(ctx, relay, slot.Application(second.Table)); err != nil {
		return "", err
	}
	wait(ctx, max(hold, foreignOwnerHold))
	return "", nil
}

// giveSlotTo ends the streams of other relays until this relay streams. application is its application_name.
func (w *World) giveSlotTo(ctx context.Context, relay *Relay, application string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, takeSlotTimeout,
		fmt.Errorf("the other relays were quicker than %s", relay.Name))
	defer cancel()
	return poll(ctx, func() (bool, error) {
		if role := relay.Role(ctx); role == "streaming" || role == "" || role == "starting" {
			return role == "streaming", nil
		}
		var ended int
		err := w.QueryRow(ctx, terminateOwner, w.Slot, application).Scan(&ended)
		return false, err
	})
}
