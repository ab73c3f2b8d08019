package soak

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/program"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// drain says how far the outbox is from empty.
type drain struct {
	waiting  int   // rows in the outbox
	attempts int64 // of these rows
	writers  int   // sessions of writers whose last transaction may not have ended
}

func (w *world) look(ctx context.Context) (d drain, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute) // however full the table is
	defer cancel()
	err = w.on(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT count(*), coalesce(sum(attempts), 0),
			(SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database())
			FROM `+outboxTable, writerName).Scan(&d.waiting, &d.attempts, &d.writers)
	})
	return d, err
}

// awaitDrained waits, after the writers stopped and while the relays run, until the outbox is empty and no transaction
// is open. It gives up if nothing has moved for the time quiet, which must be longer than the longest wait between two
// attempts. It also ends with ctx.
func (w *world) awaitDrained(ctx context.Context, quiet time.Duration) error {
	var before drain
	moved := time.Now()
	for {
		began := time.Now()
		now, err := w.look(ctx)
		if err == nil && now.waiting == 0 && now.writers == 0 {
			return nil
		}
		if err == nil && now != before {
			before, moved = now, time.Now()
		}
		if time.Since(moved) > quiet {
			stuck := fmt.Errorf("nothing has left the outbox for %s: %d rows wait, and %d writers are connected",
				quiet, before.waiting, before.writers)
			return errors.Join(stuck, err)
		}
		if !program.Pause(ctx, max(100*time.Millisecond, 5*time.Since(began))) {
			return fmt.Errorf("wait for an empty outbox: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

// recordTables reports the final state: the rows of the outbox and the dead-letter table, and the committed
// transactions. Nothing writes any more.
func (w *world) recordTables(ctx context.Context, record *history.Recorder) error {
	return w.on(ctx, func(conn *pgx.Conn) error {
		var id [16]byte
		var r history.Row
		rows, _ := conn.Query(ctx, `SELECT message_id, false, attempts, '', coalesce(last_error, '')
			FROM `+outboxTable+` UNION ALL
			SELECT message_id, true, attempts, failure_reason, coalesce(last_error, '') FROM `+deadLetterTable)
		into := []any{&id, &r.DeadLetter, &r.Attempts, &r.Reason, &r.LastError}
		_, err := pgx.ForEachRow(rows, into, func() error {
			r.Message = id
			record.Remaining(r)
			return nil
		})
		if err != nil {
			return fmt.Errorf("read the final state: %w", err)
		}
		var kept int64
		rows, _ = conn.Query(ctx, `SELECT id FROM soak_transaction ORDER BY id`)
		_, err = pgx.ForEachRow(rows, []any{&kept}, func() error {
			record.Kept(kept)
			return nil
		})
		return err
	})
}
