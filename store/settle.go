package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/pgtime"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Settled is the result of a batch.
type Settled struct {
	// Done rows were changed as decided.
	Done []outbox.Settlement
	// Gone rows are deleted, claimed or moved by another session.
	Gone []outbox.Settlement
	// NotVisible rows were streamed before their transaction became visible: the walsender sends flushed WAL before
	// other sessions see the commit. Try them again.
	NotVisible []outbox.Settlement
	// Locked rows are locked by another session. Try them again; they must not delay other rows.
	Locked []outbox.Settlement
	// Kept rows are still there: a trigger or a rule keeps them from being deleted or updated.
	Kept []outbox.Settlement
}

func (s *Settled) add(more Settled) {
	s.Done = append(s.Done, more.Done...)
	s.Gone = append(s.Gone, more.Gone...)
	s.NotVisible = append(s.NotVisible, more.NotVisible...)
	s.Locked = append(s.Locked, more.Locked...)
}

// writes returns the statement of each action.
func (s *Store) writes() []settling {
	return []settling{
		{action: outbox.Delete, sql: s.sql.delete, nearSQL: s.sql.deleteNear},
		{action: outbox.Delete, dropped: true, sql: s.sql.drop, nearSQL: s.sql.dropNear},
		{action: outbox.Retry, sql: s.sql.retry},
		{action: outbox.DeadLetter, sql: s.sql.deadLetter},
		{action: outbox.Release, sql: s.sql.release},
	}
}

// ofAction returns the rows with an action, sorted by id so that two relays cannot deadlock.
func ofAction(rows []outbox.Settlement, action outbox.Action) (part []outbox.Settlement) {
	for _, one := range rows {
		if one.Decision.Action == action {
			part = append(part, one)
		}
	}
	slices.SortFunc(part, func(a, b outbox.Settlement) int { return cmp.Compare(a.Message.ID, b.Message.ID) })
	return part
}

// Settle writes the decisions, with one statement for each action. On an error, rows that are in no list may be written
// nevertheless: settle them again, as Tried.
func (s *Store) Settle(ctx context.Context, batch []outbox.Settlement) (settled Settled, err error) {
	err = s.settleEach(ctx, batch, &settled)
	if unknown := s.checkGone(ctx, &settled); err == nil {
		err = unknown
	}
	return settled, err
}

func (s *Store) settleEach(ctx context.Context, batch []outbox.Settlement, settled *Settled) error {
	for _, write := range s.writes() {
		// Rows that were locked at the last try must not send the others the slow way.
		for _, locked := range []bool{false, true} {
			part := slices.DeleteFunc(write.part(batch), func(one outbox.Settlement) bool { return one.Locked != locked })
			if len(part) == 0 {
				continue
			}
			if err := s.settlePart(ctx, write, part, settled); err != nil {
				return fmt.Errorf("delete or update rows of %s: %w", s.table, err)
			}
		}
	}
	return nil
}

// settlePart writes the rows of one statement, and repeats a statement that it can correct.
func (s *Store) settlePart(ctx context.Context, write settling, part []outbox.Settlement, settled *Settled) error {
	template := write.sql
	if write.action == outbox.DeadLetter {
		s.extras.read(ctx, s.pool, s.table)
		write.sql = s.extras.fill(template)
	}
	err := s.settle(ctx, write, part, settled)
	if write.action == outbox.DeadLetter && pgcode.Class(err) == pgcode.SyntaxOrAccess {
		s.extras.forget() // a column may have been dropped since it was read
		s.extras.read(ctx, s.pool, s.table)
		write.sql = s.extras.fill(template)
		err = s.settle(ctx, write, part, settled)
	}
	if s.lacksPartition(err) {
		_, failed := s.RotatePublished(ctx, forever)
		if failed == nil {
			err = s.settle(ctx, write, part, settled)
		}
		if s.lacksPartition(err) {
			return s.noPartition(err, failed)
		}
	}
	if pgcode.Class(err) == pgcode.DataException { // such as untranslatable_character
		// The database's encoding lacks a character of the broker's text. This row must not block the others.
		for i := range part {
			part[i].Decision.Detail = plain(part[i].Decision.Detail)
		}
		err = s.settle(ctx, write, part, settled)
	}
	return err
}

// checkGone looks for rows that a statement did not change: rows that are there and that nobody else has changed, and
// dead letters that an earlier try has moved. On an error, these rows are in no list.
func (s *Store) checkGone(ctx context.Context, settled *Settled) error {
	var deletes, changes, others, moves []outbox.Settlement
	for _, one := range settled.Gone {
		if one.Decision.Action == outbox.Delete {
			deletes = append(deletes, one)
		} else {
			changes = append(changes, one)
		}
	}
	settled.Gone = nil
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if err := s.split(ctx, s.sql.visible, 2, deletes, &settled.Kept, &settled.Gone); err != nil {
		return err
	}
	if err := s.split(ctx, s.sql.unchanged, 3, changes, &settled.Kept, &others); err != nil {
		return err
	}
	for _, one := range others {
		if one.Decision.Action == outbox.DeadLetter && one.Tried {
			moves = append(moves, one)
		} else {
			settled.Gone = append(settled.Gone, one)
		}
	}
	return s.split(ctx, s.sql.moved, 2, moves, &settled.Done, &settled.Gone)
}

// split adds the rows that a statement finds to one list, and the others to another. The statement uses the first
// args of settleArgs.
func (s *Store) split(
	ctx context.Context, sql string, args int, part []outbox.Settlement, there, elsewhere *[]outbox.Settlement,
) error {
	if len(part) == 0 {
		return nil
	}
	found, err := foundRows(ctx, s.pool, sql, args, part)
	if err != nil {
		return fmt.Errorf("find %d rows of %s: %w", len(part), s.table, err)
	}
	for i, one := range part {
		if found[i] {
			*there = append(*there, one)
		} else {
			*elsewhere = append(*elsewhere, one)
		}
	}
	return nil
}

// forever keeps all partitions of the history.
const forever = 100 * 365 * 24 * time.Hour

// noPartition is the error if no partition could be created, with the reason if it is known.
func (s *Store) noPartition(err, failed error) error {
	if failed != nil {
		err = fmt.Errorf("%w; %w", failed, err)
	}
	if problem.Hint(err) == "" {
		err = &problem.Problem{
			What: "table " + s.table.Published().String() + " has no partition for today",
			Fix:  s.table.Command("setup", "--keep-published", "168h"), Err: err,
		}
	}
	return &historyFault{err}
}

// historyFault is the error of a statement for which the history has no partition. No row is at fault.
type historyFault struct{ error }

func (f *historyFault) Unwrap() error { return f.error }

// lacksPartition reports whether the history has no partition for a row. Such an error has no constraint
// (ExecFindPartition in execPartition.c).
func (s *Store) lacksPartition(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && answer.Code == pgerrcode.CheckViolation && answer.ConstraintName == "" &&
		answer.SchemaName == s.table.Schema && answer.TableName == s.table.Published().Name
}

// Receiver returns the table that did not accept a row that a statement has moved there: the dead letters, the history,
// or one of its partitions. It is empty if the error is about no such table.
func (s *Store) Receiver(err error) string {
	var answer *pgconn.PgError
	if !errors.As(err, &answer) || answer.SchemaName != s.table.Schema {
		return ""
	}
	if answer.TableName != s.table.DeadLetter().Name && !strings.HasPrefix(answer.TableName, s.table.Name+"_p") {
		return ""
	}
	return outbox.Table{Schema: answer.SchemaName, Name: answer.TableName}.String()
}

// IsRowFault reports whether a statement failed because of one of its rows: a type, a constraint, a trigger or a
// function.
func IsRowFault(err error) bool {
	if errors.As(err, new(*historyFault)) {
		return false
	}
	switch pgcode.Class(err) {
	case "09", "0A", pgcode.DataException, pgcode.ConstraintViolation, "27", "2F", "38", "39", "42", "44", "54", "P0":
		return !pgcode.Is(err, pgerrcode.InsufficientPrivilege)
	}
	return errors.Is(err, ErrUnchanged)
}

// settling is the statement of one action.
type settling struct {
	action outbox.Action
	// dropped: the rows were not published, so they do not go to the history.
	dropped bool
	sql     string
	// nearSQL is for rows with close ids; "" for all actions except deletes.
	nearSQL string
}

// part returns the rows of a batch for this statement.
func (w settling) part(batch []outbox.Settlement) []outbox.Settlement {
	return slices.DeleteFunc(ofAction(batch, w.action), func(one outbox.Settlement) bool {
		return w.action == outbox.Delete && (one.Decision.Reason != "") != w.dropped
	})
}

// settle waits for locked rows up to lock_timeout, then settles the other rows. It settles all or nothing.
func (s *Store) settle(ctx context.Context, write settling, part []outbox.Settlement, into *Settled) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if !part[0].Locked { // as the others
		if err := write.run(ctx, s.pool, part, into); !pgcode.Is(err, pgerrcode.LockNotAvailable) {
			return err
		}
	}
	var settled Settled // counts only once it is committed
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		free, locked, err := s.lockFree(ctx, tx, part)
		settled.Locked = locked
		if err != nil || len(free) == 0 {
			return err
		}
		return write.run(ctx, tx, free, &settled)
	})
	if err == nil {
		into.add(settled)
	}
	return err
}

// foundRows reports for each settlement whether a statement finds its row.
func foundRows(ctx context.Context, db querier, sql string, args int, part []outbox.Settlement) ([]bool, error) {
	found := make([]bool, len(part))
	return found, forEach(ctx, db, sql, settleArgs(part)[:args], func(i int64) { found[i] = true })
}

// forEach calls f with the index of each settlement whose row a statement finds. Its further columns go to more.
func forEach(ctx context.Context, db querier, sql string, args []any, f func(i int64), more ...any) error {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	var nth int64
	_, err = pgx.ForEachRow(rows, append([]any{&nth}, more...), func() error {
		f(nth - 1)
		return nil
	})
	return err
}

// lockFree locks the rows that no other session has locked, and marks those whose lock it overwrites. Rows that are not
// visible count as free, because nobody waits for them.
func (s *Store) lockFree(ctx context.Context, tx pgx.Tx, part []outbox.Settlement) (free, locked []outbox.Settlement, err error) {
	ours := make([]bool, len(part))
	var traced bool
	err = forEach(ctx, tx, s.sql.lockFree, settleArgs(part)[:2], func(i int64) {
		ours[i] = true
		m := part[i].Message
		m.PossibleDuplicate = m.PossibleDuplicate || traced
	}, &traced)
	if err != nil {
		return nil, nil, err
	}
	visible, err := foundRows(ctx, tx, s.sql.visible, 2, part)
	if err != nil {
		return nil, nil, err
	}
	for i, settlement := range part {
		settlement.Locked = visible[i] && !ours[i]
		if settlement.Locked {
			locked = append(locked, settlement)
		} else {
			free = append(free, settlement)
		}
	}
	return free, locked, nil
}

func (w settling) run(ctx context.Context, db rower, part []outbox.Settlement, into *Settled) error {
	text, changed, err := w.write(ctx, db, part)
	if err != nil {
		return err
	}
	if len(changed) == len(part) {
		into.Done = append(into.Done, part...)
		return nil
	}
	snapshot, err := outbox.ParseSnapshot(text)
	if err != nil {
		return err
	}
	done := make([]bool, len(part))
	for _, nth := range changed { // from 1
		done[nth-1] = true
	}
	for i, settlement := range part {
		switch m := settlement.Message; {
		case done[i]:
			into.Done = append(into.Done, settlement)
		case m.XID == 0 || snapshot.Finished(m.XID):
			into.Gone = append(into.Gone, settlement)
		default:
			into.NotVisible = append(into.NotVisible, settlement)
		}
	}
	return nil
}

// write returns the snapshot of the statement, and the places of the changed rows in the batch, from 1.
func (w settling) write(ctx context.Context, db rower, part []outbox.Settlement) (snapshot string, changed []int64, err error) {
	sql, args := w.statement(part)
	if err = db.QueryRow(ctx, sql, args...).Scan(&snapshot, &changed); err == nil && sql == w.nearSQL {
		positions(changed, part)
	}
	return snapshot, changed, err
}

// statement returns the statement and arguments for a batch that is sorted by id.
func (w settling) statement(part []outbox.Settlement) (sql string, args []any) {
	args = settleArgs(part)
	if w.nearSQL == "" {
		return w.sql, args
	}
	if messageIDs := compactIDs(part); messageIDs != nil {
		return w.nearSQL, []any{args[0], messageIDs, part[0].Message.ID}
	}
	return w.sql, args[:2]
}

// rower is a pool, a connection or a transaction.
type rower interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// settleArgs returns the columns of settledRows.
func settleArgs(part []outbox.Settlement) []any {
	n := len(part)
	ids, messageIDs := make([]int64, n), make([][16]byte, n)
	times, duplicates := make([]pgtype.Timestamptz, n), make([]bool, n)
	delays, details, reasons := make([]time.Duration, n), make([]string, n), make([]string, n)
	rejected := make([]int32, n)
	for i, settlement := range part {
		m := settlement.Message
		ids[i], messageIDs[i] = m.ID, m.MessageID
		times[i] = pgtime.ToColumn(m.AvailableAt)
		duplicates[i] = m.PossibleDuplicate
		delays[i] = settlement.Decision.Delay
		details[i], reasons[i] = settlement.Decision.Detail, string(settlement.Decision.Reason)
		if settlement.Rejected {
			rejected[i] = 1
		}
	}
	return []any{ids, messageIDs, times, duplicates, delays, details, reasons, rejected}
}

// plain writes characters beyond ASCII as Go does (\u00e9): every encoding has these.
func plain(s string) string { return strings.Trim(strconv.QuoteToASCII(s), `"`) }
