package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
)

// Which dead letters go back, and with which id. They keep theirs, and with it their place
// before the later rows of their key. Ids that are not free or not out yet (the sequence was
// restarted since: an application's INSERT would meet them) are replaced by ones below all
// that are in use, for all that go back of the key alike, so that their order and their
// place stay. $1 is the newest id that the sequence has handed out.
const requeueChoiceSQL = `
WITH picked AS (
  SELECT r.id, r.message_id, r.ordering_key,
         r.id > $1 OR count(*) OVER (PARTITION BY r.id) > 1
         OR EXISTS (SELECT 1 FROM {outbox} o WHERE o.id = r.id AND o.message_id <> r.message_id OFFSET 0) AS taken
  FROM {dead} r WHERE {where}
), placed AS (
  SELECT id, message_id, CASE WHEN ordering_key IS NULL THEN taken
         ELSE bool_or(taken) OVER (PARTITION BY ordering_key) END AS moved
  FROM picked
), numbered AS (
  SELECT id, message_id, CASE WHEN moved THEN least((SELECT min(id) FROM {outbox}), min(id) OVER (), 1) - count(*) FILTER (WHERE moved) OVER ()
         + row_number() OVER (PARTITION BY moved ORDER BY id, message_id) - 1 ELSE id END AS place
  FROM placed
)
SELECT id, message_id, place FROM numbered ORDER BY place`

// They come back as due: the stream never publishes such a row directly, and who claims it knows exactly whether it may
// have been published before.
const requeueSQL = `
WITH back AS (
  DELETE FROM {dead} r USING unnest($1::bigint[], $2::uuid[], $3::bigint[]) s(id, message_id, place)
  WHERE r.id = s.id AND r.message_id = s.message_id RETURNING ` + keptColumns + `{extra_columns}, r.possible_duplicate, s.place)
INSERT INTO {outbox} ({kept}{extra_names}, possible_duplicate, attempts, available_at) OVERRIDING SYSTEM VALUE
SELECT place, {keptButID}{extra_values}, possible_duplicate, 0, clock_timestamp() FROM back ORDER BY place`

// goesOn is expires_at of what comes back: a message that a person sends back does not expire at once again.
const goesOn = `CASE WHEN expires_at > clock_timestamp() THEN expires_at END`

// Requeued is what came of sending dead letters back.
type Requeued struct {
	// Sent are back in the outbox.
	Sent int64
	// Moved of them have a new id, since their own was not free.
	Moved int64
	// Left are dead letters still: the outbox does not take them.
	Left int64
	// Why is the newest reason of those.
	Why error
}

type requeuedRow struct {
	ID        int64
	MessageID [16]byte
	Place     int64
}

// Requeue sends the dead letters that the filter picks back to the outbox, with all their
// attempts, oldest first, in batches, each of which is whole. Those of a key keep their
// order, and come before what waits of it. On an error the result is what was done until then.
func (o *Operator) Requeue(ctx context.Context, filter Filter, batch int, progress Progress) (done Requeued, err error) {
	defer func() {
		if err != nil {
			err = o.may(ctx, fmt.Errorf("send dead letters of %s back: %w", o.table, err), o.requeueNeeds(ctx)...)
		}
	}()
	o.extras.forget()
	o.extras.read(ctx, o.conn, o.table)
	newest, err := o.newestID(ctx)
	if err != nil {
		return done, err
	}
	where, args := filter.where(ofDeadLetters, []any{newest})
	chosen, err := o.choose(ctx, o.fill(requeueChoiceSQL, "{where}", where), args...)
	if err != nil {
		return done, err
	}
	defer chosen.close(ctx)
	for seen := int64(0); ; {
		progress(seen, chosen.total)
		rows, err := take(ctx, chosen, batch, pgx.RowToStructByPos[requeuedRow])
		if err != nil || len(rows) == 0 {
			return done, err
		}
		if err := o.requeue(ctx, rows, &done); err != nil {
			return done, err
		}
		seen += int64(len(rows))
	}
}

// requeue sends one batch back. Where the outbox does not take it, the rows go one by one, and
// those that are at fault stay.
func (o *Operator) requeue(ctx context.Context, rows []requeuedRow, done *Requeued) error {
	var ids, places []int64
	var messageIDs [][16]byte
	moved := int64(0)
	for _, row := range rows {
		ids, messageIDs, places = append(ids, row.ID), append(messageIDs, row.MessageID), append(places, row.Place)
		if row.ID != row.Place {
			moved++
		}
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
	defer cancel()
	sql := o.extras.fill(requeueSQL)
	butID := strings.Replace(strings.TrimPrefix(keptNames, "id, "), "expires_at", goesOn, 1)
	tag, err := o.conn.Exec(bounded, o.fill(sql, "{keptButID}", butID), ids, messageIDs, places)
	switch {
	case err == nil:
		done.Sent += tag.RowsAffected()
		done.Moved += min(moved, tag.RowsAffected()) // some may have been sent back by somebody else meanwhile
		return nil
	case pgcode.Class(err) != pgcode.ConstraintViolation:
		return err
	case len(rows) == 1:
		done.Left++
		done.Why = fmt.Errorf("dead letter %d: %w", rows[0].ID, err)
		return nil
	}
	for i := range rows {
		if err := o.requeue(ctx, rows[i:i+1], done); err != nil {
			return err
		}
	}
	return nil
}

// newestID is the newest id that was handed out; where the table has no sequence, the
// greatest there can be.
func (o *Operator) newestID(ctx context.Context) (id int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	err = o.conn.QueryRow(ctx, `
SELECT coalesce((SELECT coalesce(pg_sequence_last_value(s.oid), 0) FROM pg_get_serial_sequence($1, 'id') name
                 JOIN pg_catalog.pg_class s ON s.oid = name::regclass), 9223372036854775807)`, o.table.SQL()).Scan(&id)
	return id, err
}

func (o *Operator) requeueNeeds(ctx context.Context) []need {
	needs := []need{{"SELECT, DELETE", o.table.DeadLetter().SQL()}, {"SELECT, INSERT", o.table.SQL()}}
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	var sequence *string
	if err := o.conn.QueryRow(ctx, `SELECT pg_get_serial_sequence($1, 'id')`, o.table.SQL()).Scan(&sequence); err == nil && sequence != nil {
		needs = append(needs, need{"SELECT", "SEQUENCE " + *sequence})
	}
	return needs
}
