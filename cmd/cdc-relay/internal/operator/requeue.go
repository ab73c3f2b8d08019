package operator

import (
	"context"
	"fmt"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/schema"
)

// Which dead letters are requeued, and with which id. They keep their ids, and so their places before later rows of the
// key.
// If an id is taken, or is above $1, all requeued rows of its key get new ids in order, below all ids in use. $1 is the
// newest id of the sequence: later INSERTs use the ids above it.
const requeueChoiceSQL = `
WITH picked AS (
  SELECT r.id, r.message_id, r.ordering_key, ` + storedSize + ` AS size,
         r.id > $1 OR count(*) OVER (PARTITION BY r.id) > 1
         OR EXISTS (SELECT 1 FROM {outbox} o WHERE o.id = r.id AND o.message_id <> r.message_id OFFSET 0) AS taken
  FROM {dead} r WHERE {where}
), placed AS (
  SELECT id, message_id, size, CASE WHEN ordering_key IS NULL THEN taken
         ELSE pg_catalog.bool_or(taken) OVER (PARTITION BY ordering_key) END AS moved
  FROM picked
), numbered AS (
  SELECT id, message_id, size,
         CASE WHEN moved THEN least((SELECT pg_catalog.min(id) FROM {outbox}), pg_catalog.min(id) OVER (), 1)
                - count(*) FILTER (WHERE moved) OVER ()
                + row_number() OVER (PARTITION BY moved ORDER BY id, message_id) - 1
              ELSE id END AS place
  FROM placed
)
SELECT id, message_id, NULL::timestamptz, place, size FROM numbered ORDER BY place`

// Requeued rows are due: the stream never publishes such a row, and a sweep marks it if its column says so.
const requeueSQL = `
WITH back AS (
  DELETE FROM {dead} r USING unnest($1::bigint[], $2::uuid[], $3::bigint[]) s(id, message_id, place)
  WHERE r.id = s.id AND r.message_id = s.message_id RETURNING {copied_of_row}{extra_columns},
    r.possible_duplicate, s.place)
, put AS (
  INSERT INTO {outbox} ({copied}{extra_names}, possible_duplicate, attempts, available_at) OVERRIDING SYSTEM VALUE
  SELECT place, {copiedButID}{extra_values}, possible_duplicate, 0, clock_timestamp() FROM back
  ORDER BY place RETURNING 1)
SELECT (SELECT count(*) FROM back), (SELECT count(*) FROM put)`

// goesOn is expires_at of a requeued row: it must not expire again at once.
const goesOn = `CASE WHEN expires_at > clock_timestamp() THEN expires_at END`

// requeueing returns how to requeue the dead letters that a filter selects.
func (t *Tables) requeueing(ctx context.Context, filter Filter) (from chooser, apply applier, err error) {
	extras, err := schema.ReadExtraColumns(ctx, t.conn, t.table)
	if err != nil {
		return from, nil, err
	}
	newest, err := t.newestID(ctx)
	sql := t.requeueStatement(extras)
	return chooser{deadLetters(), requeueChoiceSQL, filter, []any{newest}},
		func(ctx context.Context, rows []chosenRow, done *Changed) error {
			return t.requeue(ctx, sql, rows, done)
		}, err
}

func (t *Tables) requeueStatement(extras schema.ExtraColumns) string {
	butID := strings.Replace(schema.List(schema.Copied()[1:], ""), "expires_at", goesOn, 1)
	return extras.Fill(t.fill(requeueSQL, "{copiedButID}", butID))
}

// requeue moves one batch. If the outbox rejects it, requeue tries each row, and rejected rows stay.
func (t *Tables) requeue(ctx context.Context, sql string, rows []chosenRow, done *Changed) error {
	var ids, places []int64
	var messageIDs [][16]byte
	moved := int64(0)
	for _, row := range rows {
		ids, messageIDs, places = append(ids, row.ID), append(messageIDs, row.MessageID), append(places, row.Place)
		if row.ID != row.Place {
			moved++
		}
	}
	sent, err := t.move(ctx, sql, ids, messageIDs, places)
	switch {
	case err == nil:
		done.Done += sent
		done.NewIDs += min(moved, sent) // another session may have requeued some
		return nil
	case pgcode.Class(err) != pgcode.ConstraintViolation:
		return err
	case len(rows) == 1:
		done.Left++
		done.Why = fmt.Errorf("dead letter %d: %w", rows[0].ID, err)
		return nil
	}
	for i := range rows {
		if err := t.requeue(ctx, sql, rows[i:i+1], done); err != nil {
			return err
		}
	}
	return nil
}

// newestID returns the newest id of the sequence; without a sequence, the greatest possible id.
func (t *Tables) newestID(ctx context.Context) (id int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	err = t.conn.QueryRow(ctx, `
SELECT coalesce((SELECT coalesce(pg_catalog.pg_sequence_last_value(s.oid), 0)
                 FROM pg_catalog.pg_get_serial_sequence($1, 'id') name
                 JOIN pg_catalog.pg_class s ON s.oid = name::regclass::oid),
                9223372036854775807)`, t.table.SQL()).Scan(&id)
	return id, err
}

func (t *Tables) requeueNeeds(ctx context.Context) []need {
	needs := []need{{"SELECT, DELETE", t.table.DeadLetter().SQL()}, {"SELECT, INSERT", t.table.SQL()}}
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	var sequence *string
	const sql = `SELECT pg_catalog.pg_get_serial_sequence($1, 'id')`
	if err := t.conn.QueryRow(ctx, sql, t.table.SQL()).Scan(&sequence); err == nil && sequence != nil {
		needs = append(needs, need{"SELECT", "SEQUENCE " + *sequence})
	}
	return needs
}
