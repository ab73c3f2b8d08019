package operator

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Verb is what a Change does.
type Verb string

const (
	// Retry makes rejected rows of the outbox due now, with all their attempts, except locked ones.
	Retry Verb = "retry"
	// Requeue moves dead letters back to the outbox, with attempts 0, oldest first. Rows of a key keep their order,
	// before the key's waiting rows.
	Requeue Verb = "requeue"
	// Replay inserts copies of published messages into the outbox.
	Replay Verb = "replay"
	// Delete deletes rows of the outbox, except locked ones.
	Delete Verb = "delete"
	// Purge deletes dead letters.
	Purge Verb = "purge"
	// Bury moves rows of the outbox to the dead letters, except locked ones. The next row of the key then goes on.
	Bury Verb = "bury"
)

// Change is a change of the rows that a filter selects. Each batch is a transaction.
type Change struct {
	Do Verb
	// Filter selects rows of the table that the verb changes. Only Delete and Bury use its State.
	Filter Filter
	// Batch is the maximum number of rows in a transaction.
	Batch int
	// Copies is for Replay.
	Copies Copies
}

// Changed is the result of a Change.
type Changed struct {
	// Matched counts the rows that the filter selects, Done those that are changed.
	Matched, Done int64
	// Left counts the rows that stay: a session has locked them, or the outbox rejects them.
	Left int64
	// Why is the last such rejection.
	Why error
	// NewIDs counts the requeued rows with a new id, because their own was taken.
	NewIDs int64
	// Unpublished counts the rows deleted from the outbox that no relay has published, or will publish. A relay may
	// have published the other ones, or be publishing them now.
	Unpublished int64
	// LastID is the id of the message that was replayed last.
	LastID int64
}

// The rows of a change, in the order of the primary key. A session that locks a row does not change its state here: the
// row is skipped later, and counted.
const deleteChoiceSQL = `SELECT r.id, r.message_id, NULL::timestamptz, r.id, ` + storedSize + `
FROM (` + unlockedSQL + `) r WHERE {where} ORDER BY r.id`

const (
	unlockedSQL = `SELECT r.*, {state} AS state FROM (` + timedSQL + `) r`
	timedSQL    = `SELECT ` + rowColumns + `, r.available_at FROM {outbox} r`
)

// The condition of unpublishedSQL is read once more when the row is locked: its time may have come meanwhile.
const deleteSQL = `
WITH free AS (
  SELECT r.id, ` + unpublishedSQL + ` AS unpublished FROM unnest($1::bigint[], $2::uuid[]) s(id, message_id)
  JOIN {outbox} r ON r.id = s.id AND r.message_id = s.message_id ORDER BY r.id FOR UPDATE OF r SKIP LOCKED)
DELETE FROM {outbox} r USING free f WHERE r.id = f.id RETURNING f.unpublished AND ` + unpublishedSQL

// unpublishedSQL is the condition for rows r that no relay has published, as in outbox_cancel. A relay takes a row with
// a time only when that has come. It publishes rows without a lock, and a streamed row also when that is deleted before
// the relay reads its insert.
const unpublishedSQL = `coalesce(r.available_at > clock_timestamp() AND r.possible_duplicate IS NOT TRUE, false)`

// burySQL moves the rows of deleteSQL to the dead letters. What a relay may have published is marked.
const burySQL = `
WITH free AS (
  SELECT r.id, r.message_id, NOT ` + unpublishedSQL + ` AS uncertain
  FROM unnest($1::bigint[], $2::uuid[]) s(id, message_id)
  JOIN {outbox} r ON r.id = s.id AND r.message_id = s.message_id ORDER BY r.id FOR UPDATE OF r SKIP LOCKED),
moved AS (
  DELETE FROM {outbox} r USING free f WHERE r.id = f.id AND r.message_id = f.message_id
  RETURNING {copied_of_row}{extra_columns}, r.possible_duplicate OR f.uncertain AS possible_duplicate, r.attempts,
            r.last_error)
INSERT INTO {dead} ({copied}{extra_names}, possible_duplicate, attempts, last_error, failure_reason, dead_at)
SELECT {copied}{extra_values}, possible_duplicate, attempts, last_error, '{by_hand}', clock_timestamp() FROM moved
RETURNING false`

const purgeChoiceSQL = `SELECT r.id, r.message_id, NULL::timestamptz, r.id, ` + storedSize + ` FROM {dead} r
WHERE {where} ORDER BY r.id, r.message_id`

const purgeSQL = `
DELETE FROM {dead} r USING unnest($1::bigint[], $2::uuid[]) s(id, message_id)
WHERE r.id = s.id AND r.message_id = s.message_id RETURNING false`

// Rejected rows.
const retryableRows = `r.available_at IS NOT NULL AND r.attempts > 0`

const retryChoiceSQL = `SELECT r.id, r.message_id, NULL::timestamptz, r.id, 0::bigint FROM {outbox} r
WHERE ` + retryableRows + ` AND {where} ORDER BY r.id`

// A due row keeps its time: a relay may still settle the row with that time as the fence.
const retrySQL = `
WITH free AS (
  SELECT r.id FROM unnest($1::bigint[], $2::uuid[]) s(id, message_id)
  JOIN {outbox} r ON r.id = s.id AND r.message_id = s.message_id
  WHERE ` + retryableRows + ` ORDER BY r.id FOR UPDATE OF r SKIP LOCKED)
UPDATE {outbox} r SET attempts = 0, available_at = least(r.available_at, clock_timestamp())
FROM free f WHERE r.id = f.id RETURNING false`

// chooser selects the rows of a change: a query with {where}, and its first arguments.
type chooser struct {
	from   source
	query  string
	filter Filter
	args   []any
}

func (t *Tables) chooser(c Change) chooser {
	switch filter := c.Filter.In(""); c.Do {
	case Retry:
		return chooser{waiting(filter.Known), retryChoiceSQL, filter, nil}
	case Replay:
		return chooser{history(), replayChoiceSQL, filter, []any{c.Copies.after()}}
	case Delete, Bury:
		sql := strings.ReplaceAll(deleteChoiceSQL, "{state}", filter.stateSQL("0", c.Filter.State))
		return chooser{waiting(filter.Known), sql, c.Filter, nil}
	default:
		return chooser{deadLetters(), purgeChoiceSQL, filter, nil}
	}
}

// Count counts the rows that a change would change.
func (t *Tables) Count(ctx context.Context, c Change) (n int64, err error) {
	from := t.chooser(c)
	where, args := from.filter.where(from.from, from.args)
	err = t.look(ctx, func(ctx context.Context, tx querier) error {
		sql := t.fill("SELECT count(*) FROM ("+from.query+") c", "{where}", where)
		return tx.QueryRow(ctx, sql, args...).Scan(&n)
	})
	return n, t.reading(ctx, from.from, "count rows of", err)
}

// behindSQL counts the rows of the outbox in the keys of the rows to change, from the first of these on. It says how
// many rows it read, and how many of those in the outbox stay.
const behindSQL = `
WITH chosen AS MATERIALIZED (
  SELECT r.ordering_key, pg_catalog.min(r.id) FILTER (WHERE {where}) AS id, count(*) AS n FROM ({from}) r GROUP BY 1)
SELECT greatest(count(*), (SELECT pg_catalog.sum(k.n) FROM chosen k)), count(*) FILTER (WHERE ({goes}) IS NOT TRUE)
FROM (SELECT r.*, {state} AS state FROM (
  SELECT n.* FROM chosen k CROSS JOIN LATERAL (
    ` + timedSQL + ` WHERE r.ordering_key BETWEEN k.ordering_key AND k.ordering_key AND {after}
    ORDER BY r.ordering_key, r.id LIMIT {limit}) n LIMIT {limit}) r) r`

// LetsGo reports whether rows that wait behind those of the change can go on after it.
func (c Change) LetsGo() bool {
	return c.Do == Delete || c.Do == Bury || c.Do == Purge && c.Filter.Block
}

// Behind counts the rows of the outbox that wait behind those of such a change in their ordering keys, and that stay.
// Its cost does not depend on the number of rows.
func (t *Tables) Behind(ctx context.Context, c Change) (n Count, err error) {
	const stop = MostBehind + 1
	of, from, goes, after := t.chooser(c), "SELECT r.*, {state} AS state FROM ("+timedSQL, "{where}", "r.id > k.id"
	in := of.filter.State.info().list
	if c.Do == Purge {
		from, goes, after, in = "SELECT r.* FROM (SELECT r.* FROM {dead} r", "false", "k.id IS NOT NULL", byDeath()
	}
	where, args := of.filter.where(of.from, of.args)
	read, args := of.filter.In("").where(of.from, args) // the state of few rows is looked up
	span := conditions{args: args, all: []string{read, "r.ordering_key IS NOT NULL"}}
	in.addTo(&span, nil)
	sql := strings.NewReplacer("{from}", from+" WHERE "+span.String()+" ORDER BY "+in.order()+" LIMIT {limit}) r",
		"{goes}", goes, "{after}", after).Replace(behindSQL)
	sql = t.fill(sql, "{where}", where, "{limit}", fmt.Sprint(stop),
		"{state}", of.filter.stateSQL("0", of.filter.State))
	err = t.glance(ctx, func(ctx context.Context, tx querier) error {
		var read int64
		err := tx.QueryRow(ctx, sql, args...).Scan(&read, &n.N)
		n.N, n.Precision = min(n.N, MostBehind), counted(read, stop).Precision
		return err
	})
	if pgcode.Is(err, pgerrcode.QueryCanceled) {
		return Count{Precision: Unknown}, nil
	}
	return n, t.reading(ctx, of.from, "count rows of", err)
}

// Change changes the rows, if agreed returns nil. Rows that match later are not changed. On an error, also one of
// agreed, done is the result before it.
func (t *Tables) Change(
	ctx context.Context, c Change, agreed Agreed, progress Progress,
) (done Changed, err error) {
	var refused error
	defer func() {
		if err != nil && refused == nil {
			err = t.changeError(ctx, c.Do, err)
		}
	}()
	from, batch := t.chooser(c), c.Batch
	var apply applier
	switch c.Do {
	case Requeue:
		from, apply, err = t.requeueing(ctx, from.filter)
	case Replay:
		pace, rows := c.Copies.pace(c.Batch)
		batch = rows
		apply = func(ctx context.Context, rows []chosenRow, done *Changed) error {
			return t.replay(ctx, rows, c.Copies, pace, done)
		}
	default:
		apply, err = t.statement(ctx, c.Do)
	}
	if err != nil {
		return done, err
	}
	chosen, err := t.choose(ctx, from)
	if err != nil {
		return done, err
	}
	defer chosen.close(ctx)
	done.Matched = chosen.total
	if agreed != nil {
		if refused = agreed(chosen.total); refused != nil {
			return done, refused
		}
	}
	err = chosen.inBatches(ctx, batch, progress, func(rows []chosenRow) error {
		if err := migrations.CheckOwners(ctx, t.conn, t.table, t.owner...); err != nil {
			return err
		}
		return apply(ctx, rows, &done)
	})
	return done, err
}

// applier changes one batch.
type applier func(ctx context.Context, rows []chosenRow, done *Changed) error

// statement returns how to run a verb that is one statement about the rows. The statement returns for each of its rows
// whether it was certainly unpublished.
func (t *Tables) statement(ctx context.Context, do Verb) (applier, error) {
	sql := t.fill(deleteSQL)
	switch do {
	case Retry:
		sql = t.fill(retrySQL)
	case Purge:
		sql = t.fill(purgeSQL)
	case Bury:
		extras, err := schema.ReadExtraColumns(ctx, t.conn, t.table)
		if err != nil {
			return nil, err
		}
		sql = extras.Fill(t.fill(burySQL, "{by_hand}", string(outbox.ReasonByHand)))
	}
	return func(ctx context.Context, rows []chosenRow, done *Changed) error {
		// It finishes even if ctx is done, so that the counts are right.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
		defer cancel()
		changed, err := t.conn.Query(ctx, sql, columnsOf(rows)...)
		if err != nil {
			return err
		}
		unpublished, err := pgx.CollectRows(changed, pgx.RowTo[bool])
		if err != nil {
			return err
		}
		for _, is := range unpublished {
			done.Done++
			if is {
				done.Unpublished++
			}
		}
		if do != Purge {
			done.Left += int64(len(rows) - len(unpublished))
		}
		return nil
	}, nil
}

// changeError completes the error of a change.
func (t *Tables) changeError(ctx context.Context, do Verb, err error) error {
	rows, letters := t.table.SQL(), t.table.DeadLetter().SQL()
	switch do {
	case Retry:
		return t.may(ctx, fmt.Errorf("retry rows of %s: %w", t.table, err), need{"SELECT, UPDATE", rows})
	case Requeue:
		return t.may(ctx, fmt.Errorf("requeue dead letters of %s: %w", t.table, err), t.requeueNeeds(ctx)...)
	case Replay:
		return t.reading(ctx, history(), "replay messages of", err, need{"INSERT", rows})
	case Bury:
		return t.may(ctx, fmt.Errorf("move rows of %s to the dead letters: %w", t.table, err),
			need{"SELECT, UPDATE, DELETE", rows}, need{"SELECT, INSERT", letters})
	case Delete:
		return t.may(ctx, fmt.Errorf("delete rows of %s: %w", t.table, err), need{"SELECT, UPDATE, DELETE", rows})
	}
	return t.may(ctx, fmt.Errorf("purge dead letters of %s: %w", t.table, err), need{"SELECT, DELETE", letters})
}
