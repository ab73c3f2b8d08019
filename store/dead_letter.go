package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgtime"
)

// DeadMessage is a dead letter.
type DeadMessage struct {
	StoredMessage
	Reason string
	DeadAt time.Time
}

// Newest first.
const listSQL = `
SELECT {columns}, r.failure_reason, r.dead_at FROM {dead} r WHERE {where} ORDER BY r.dead_at DESC, r.id DESC LIMIT {limit}`

// Newest first within a page, with the last row that was read.
const listDeadSQL = `
SELECT {columns}, r.failure_reason, r.dead_at, coalesce({where}, false), r.nth = {looked} FROM (
  SELECT ` + keptColumns + `, r.attempts, r.last_error, r.possible_duplicate, r.failure_reason, r.dead_at,
         row_number() OVER (ORDER BY r.dead_at DESC, r.id DESC) AS nth
  FROM {dead} r WHERE {from} ORDER BY r.dead_at DESC, r.id DESC LIMIT {looked}) r
WHERE ({where}) OR r.nth = {looked} ORDER BY r.dead_at DESC, r.id DESC LIMIT {limit}`

// byDeath is the order of dead letters.
const byDeath = "r.dead_at"

// DeadLetters returns a page of the dead letters that match the filter, newest first, without payloads. Its cost does
// not depend on their number, unless the filter names messages. ErrCursor: the cursor is of another list.
func (o *Operator) DeadLetters(ctx context.Context, filter Filter, page Page) (list Listing[DeadMessage], err error) {
	if len(filter.IDs)+len(filter.MessageIDs) > 0 {
		list.Rows, err = o.deadLetters(ctx, filter, page.Limit, false)
		return list, err
	}
	after, err := parseCursor(page.After, byDeath)
	if err != nil {
		return list, err
	}
	where, args := filter.where(ofDeadLetters, nil)
	from := "true"
	if after != nil && after.At != nil {
		args = append(args, *after.At, after.ID)
		from = fmt.Sprintf("(r.dead_at, r.id) < ($%d::timestamptz, $%d)", len(args)-1, len(args))
	}
	sql := o.fill(listDeadSQL, "{columns}", storedColumns(false), "{where}", where, "{from}", from,
		"{looked}", fmt.Sprint(MostLooked), "{limit}", fmt.Sprint(page.Limit+1))
	err = o.glance(ctx, func(ctx context.Context, tx querier) (err error) {
		list, err = collectPage(ctx, tx, sql, args, page.Limit, func(row pgx.CollectableRow) (letter DeadMessage, at place, err error) {
			var died pgtype.Timestamptz
			letter, err = scanDeadLetter(row, &died, &at.matches, &at.last)
			at.cursor = cursor{List: byDeath, At: timeText(died), ID: letter.ID}
			return letter, at, err
		})
		return err
	})
	if err != nil {
		err = o.may(ctx, fmt.Errorf("list dead letters of %s: %w", o.table, err), o.reads()...)
	}
	return list, err
}

// DeadLetter returns the dead letters with a row id or message_id, and their payload if asked and not redacted. Several
// may have the same id if the sequence was restarted.
func (o *Operator) DeadLetter(ctx context.Context, name Name, payload bool) ([]DeadMessage, error) {
	return o.deadLetters(ctx, name.filter(), mostOfOneName, payload)
}

// mostOfOneName bounds the rows with one id.
const mostOfOneName = 100

func (o *Operator) deadLetters(ctx context.Context, filter Filter, limit int, payload bool) (letters []DeadMessage, err error) {
	where, args := filter.where(ofDeadLetters, nil)
	args = append(args, limit)
	sql := o.fill(listSQL, "{columns}", storedColumns(payload), "{where}", where, "{limit}", fmt.Sprintf("$%d", len(args)))
	err = o.look(ctx, func(ctx context.Context, tx querier) error {
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		letters, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (DeadMessage, error) { return scanDeadLetter(row, new(pgtype.Timestamptz)) })
		return err
	})
	if err != nil {
		return nil, o.may(ctx, fmt.Errorf("read dead letters of %s: %w", o.table, err), o.reads()...)
	}
	return letters, nil
}

func scanDeadLetter(row pgx.CollectableRow, died *pgtype.Timestamptz, more ...any) (DeadMessage, error) {
	var letter DeadMessage
	stored, err := scanStored(row, append([]any{&letter.Reason, died}, more...)...)
	letter.StoredMessage, letter.DeadAt = stored, pgtime.FromColumn(*died)
	return letter, err
}

// The rows to purge, in the order of the primary key.
const purgeChoiceSQL = `SELECT r.id, r.message_id FROM {dead} r WHERE {where} ORDER BY r.id, r.message_id`

const purgeSQL = `
DELETE FROM {dead} r USING unnest($1::bigint[], $2::uuid[]) s(id, message_id)
WHERE r.id = s.id AND r.message_id = s.message_id`

// CountDeadLetters counts the dead letters that match a filter.
func (o *Operator) CountDeadLetters(ctx context.Context, filter Filter) (n int64, err error) {
	where, args := filter.where(ofDeadLetters, nil)
	err = o.look(ctx, func(ctx context.Context, tx querier) error {
		return tx.QueryRow(ctx, o.fill(`SELECT count(*) FROM {dead} r WHERE {where}`, "{where}", where), args...).Scan(&n)
	})
	if err != nil {
		err = o.may(ctx, fmt.Errorf("count dead letters of %s: %w", o.table, err), o.reads()...)
	}
	return n, err
}

// Purge deletes the dead letters that match the filter, each batch in one transaction. It first passes their number to
// agreed; if agreed returns an error, Purge deletes nothing and returns that error. Later dead letters are not deleted.
// On another error, deleted counts the rows deleted before it.
func (o *Operator) Purge(
	ctx context.Context, filter Filter, batch int, agreed func(total int64) error, progress Progress,
) (deleted int64, err error) {
	var refused error
	defer func() {
		if err != nil && refused == nil {
			err = o.may(ctx, fmt.Errorf("purge dead letters of %s: %w", o.table, err), need{"SELECT, DELETE", o.table.DeadLetter().SQL()})
		}
	}()
	where, args := filter.where(ofDeadLetters, nil)
	chosen, err := o.choose(ctx, o.fill(purgeChoiceSQL, "{where}", where), args...)
	if err != nil {
		return 0, err
	}
	defer chosen.close(ctx)
	if refused = agreed(chosen.total); refused != nil {
		return 0, refused
	}
	for done := int64(0); ; {
		progress(done, chosen.total)
		refs, err := take(ctx, chosen, batch, pgx.RowToStructByPos[chosenRow])
		if err != nil || len(refs) == 0 {
			return deleted, err
		}
		ids, messageIDs := columnsOf(refs)
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
		tag, err := o.conn.Exec(bounded, o.fill(purgeSQL), ids, messageIDs)
		cancel()
		if err != nil {
			return deleted, err
		}
		deleted += tag.RowsAffected()
		done += int64(len(refs))
	}
}

// chosenRow names a row of a selection.
type chosenRow struct {
	ID        int64
	MessageID [16]byte
}

func columnsOf(rows []chosenRow) (ids []int64, messageIDs [][16]byte) {
	for _, row := range rows {
		ids, messageIDs = append(ids, row.ID), append(messageIDs, row.MessageID)
	}
	return ids, messageIDs
}

// Retention deletes old dead letters, oldest first. With {keyless} it keeps those with an ordering key, because their
// key waits for a person.
const retentionSQL = `
DELETE FROM {dead} r USING (
  SELECT d.id, d.message_id FROM {dead} d
  WHERE d.dead_at <= (SELECT clock_timestamp()) - $1::interval AND {keyless} ORDER BY d.dead_at LIMIT $2) s
WHERE r.id = s.id AND r.message_id = s.message_id`

// DeleteDeadLetters deletes at most this many dead letters of at least this age, oldest first. If dead letters block
// keys, it keeps those with an ordering key.
func (s *Store) DeleteDeadLetters(ctx context.Context, age time.Duration, most int) (deleted int64, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	tag, err := s.pool.Exec(ctx, s.sql.retention, age, most)
	if err != nil {
		return 0, fmt.Errorf("delete old dead letters of %s: %w", s.table, err)
	}
	return tag.RowsAffected(), nil
}

// CheckDeletesDeadLetters returns a *problem.Problem if the role may not delete dead letters.
func (s *Store) CheckDeletesDeadLetters(ctx context.Context) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.checkTable(ctx, s.table.DeadLetter(), nil, []string{"DELETE"})
}
