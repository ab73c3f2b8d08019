package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Settlement is a row and what is to become of it.
type Settlement struct {
	Message  *outbox.Message
	Decision Decision
	// Refused tells that the broker refused the message: one attempt is charged.
	Refused bool
	// Locked tells that another session held the row when it was tried last.
	Locked bool
}

// Settled is what came of a batch.
type Settled struct {
	// Done are rows that were changed as decided.
	Done []Settlement
	// Gone are rows that were visible to the statement no more: somebody else
	// deleted, claimed or moved them.
	Gone []Settlement
	// NotVisible are rows whose inserting transaction the database does not show yet,
	// though the stream has brought them: the walsender sends once WAL is flushed,
	// before other sessions see the commit. They are to be tried again.
	NotVisible []Settlement
	// Locked are rows that another session holds locked. They are to be tried again, and
	// must not hold up the others until then.
	Locked []Settlement
}

func (s *Settled) add(more Settled) {
	s.Done = append(s.Done, more.Done...)
	s.Gone = append(s.Gone, more.Gone...)
	s.NotVisible = append(s.NotVisible, more.NotVisible...)
	s.Locked = append(s.Locked, more.Locked...)
}

// Settle carries decisions out, one statement for each action among them. On an
// error some of them may be done; settling the rest or all again is harmless.
func (s *Store) Settle(ctx context.Context, batch []Settlement) (Settled, error) {
	var settled Settled
	for _, action := range [...]struct {
		of  Action
		sql string
	}{{Delete, s.sql.delete}, {Retry, s.sql.retry}, {DeadLetter, s.sql.deadLetter}, {Release, s.sql.release}} {
		var part []Settlement
		for _, settlement := range batch {
			if settlement.Decision.Action == action.of {
				part = append(part, settlement)
			}
		}
		if len(part) == 0 {
			continue
		}
		// In one order everywhere, so that two relays cannot deadlock.
		slices.SortFunc(part, func(a, b Settlement) int { return cmp.Compare(a.Message.ID, b.Message.ID) })
		write := settling{sql: action.sql}
		if action.of == Delete {
			write.nearSQL = s.sql.deleteNear
		}
		err := s.settle(ctx, write, part, &settled)
		if isDataException(err) {
			// The database's encoding lacks a character of what the broker said. The
			// row must not hold up the others.
			for i := range part {
				part[i].Decision.Detail = plain(part[i].Decision.Detail)
			}
			err = s.settle(ctx, write, part, &settled)
		}
		if err != nil {
			return settled, fmt.Errorf("settle %d rows of %s: %w", len(part), s.table, err)
		}
	}
	return settled, nil
}

// FindMoved is for a batch of which a try before has failed, with the outcome unknown: dead letters whose row is
// gone and that stand in their table count as done. On an error they count as not settled.
func (s *Store) FindMoved(ctx context.Context, settled *Settled) error {
	var dead, others []Settlement
	for _, one := range settled.Gone {
		if one.Decision.Action == DeadLetter {
			dead = append(dead, one)
		} else {
			others = append(others, one)
		}
	}
	if len(dead) == 0 {
		return nil
	}
	settled.Gone = others
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	found, err := among(ctx, s.pool, s.sql.moved, dead)
	if err != nil {
		return fmt.Errorf("find dead letters of %s: %w", s.table, err)
	}
	for i, one := range dead {
		if found[i] {
			settled.Done = append(settled.Done, one)
		} else {
			settled.Gone = append(settled.Gone, one)
		}
	}
	return nil
}

// isDataException: SQLSTATE class 22, such as untranslatable_character.
func isDataException(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && strings.HasPrefix(pgErr.Code, "22")
}

// settling is the statement of one action.
type settling struct {
	sql string
	// nearSQL is for rows with ids near each other; "" for all but deletes, which take
	// no more than the rows' names.
	nearSQL string
}

// settle waits for locked rows as long as lock_timeout says, then settles the others.
func (s *Store) settle(ctx context.Context, write settling, part []Settlement, into *Settled) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if !slices.ContainsFunc(part, func(one Settlement) bool { return one.Locked }) {
		err := write.run(ctx, s.pool, part, into)
		if !isLockNotAvailable(err) {
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

// among tells for each settlement whether a statement that takes their rows finds it.
func among(ctx context.Context, db querier, sql string, part []Settlement) ([]bool, error) {
	rows, err := db.Query(ctx, sql, settleArgs(part)[:2]...)
	if err != nil {
		return nil, err
	}
	found := make([]bool, len(part))
	var nth int64
	_, err = pgx.ForEachRow(rows, []any{&nth}, func() error {
		found[nth-1] = true
		return nil
	})
	return found, err
}

// lockFree locks the rows that nobody else has locked, and tells them apart from the
// others. Rows that are not visible count as free: nobody waits for those.
func (s *Store) lockFree(ctx context.Context, tx pgx.Tx, part []Settlement) (free, locked []Settlement, err error) {
	ours, err := among(ctx, tx, s.sql.lock, part)
	if err != nil {
		return nil, nil, err
	}
	visible, err := among(ctx, tx, s.sql.visible, part)
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

// isLockNotAvailable: SQLSTATE 55P03, after lock_timeout.
func isLockNotAvailable(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "55P03"
}

func (w settling) run(ctx context.Context, db rower, part []Settlement, into *Settled) error {
	text, changed, err := w.write(ctx, db, part)
	if err != nil {
		return err
	}
	if len(changed) == len(part) {
		into.Done = append(into.Done, part...)
		return nil
	}
	snapshot, err := ParseSnapshot(text)
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

// write returns the snapshot of the statement and which rows of the batch it changed,
// from 1.
func (w settling) write(ctx context.Context, db rower, part []Settlement) (snapshot string, changed []int64, err error) {
	if w.nearSQL != "" {
		if messageIDs := near(part); messageIDs != nil {
			return w.deleteNear(ctx, db, part, messageIDs)
		}
	}
	args := settleArgs(part)
	if w.nearSQL != "" {
		args = args[:2]
	}
	err = db.QueryRow(ctx, w.sql, args...).Scan(&snapshot, &changed)
	return snapshot, changed, err
}

// rower is a pool or a transaction.
type rower interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// settleArgs are the columns of settledRows.
func settleArgs(part []Settlement) []any {
	n := len(part)
	ids, messageIDs := make([]int64, n), make([][16]byte, n)
	leases, duplicates := make([]pgtype.Timestamptz, n), make([]bool, n)
	delays, details, reasons := make([]time.Duration, n), make([]string, n), make([]string, n)
	refused := make([]int32, n)
	for i, settlement := range part {
		m := settlement.Message
		ids[i], messageIDs[i] = m.ID, m.MessageID
		leases[i] = toColumn(m.AvailableAt)
		duplicates[i] = m.PossibleDuplicate
		delays[i] = settlement.Decision.Delay
		details[i], reasons[i] = settlement.Decision.Detail, string(settlement.Decision.Reason)
		if settlement.Refused {
			refused[i] = 1
		}
	}
	return []any{ids, messageIDs, leases, duplicates, delays, details, reasons, refused}
}

// NewSettlement is what becomes of the message of a result.
func NewSettlement(r outbox.Result, decision Decision) Settlement {
	return Settlement{Message: r.Message, Decision: decision, Refused: r.Outcome == outbox.Refused}
}
