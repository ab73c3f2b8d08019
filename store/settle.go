package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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
		err := s.settle(ctx, action.sql, action.of == Delete, part, &settled)
		if isDataException(err) {
			// The database's encoding lacks a character of what the broker said. The
			// row must not hold up the others.
			for i := range part {
				part[i].Decision.Detail = plain(part[i].Decision.Detail)
			}
			err = s.settle(ctx, action.sql, action.of == Delete, part, &settled)
		}
		if err != nil {
			return settled, fmt.Errorf("settle %d rows of %s: %w", len(part), s.table, err)
		}
	}
	return settled, nil
}

// isDataException: SQLSTATE class 22, such as untranslatable_character.
func isDataException(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && strings.HasPrefix(pgErr.Code, "22")
}

func (s *Store) settle(ctx context.Context, sql string, byRefAlone bool, part []Settlement, into *Settled) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	args := settleArgs(part)
	if byRefAlone {
		args = args[:2]
	}
	var text string
	var changed []int64
	if err := s.pool.QueryRow(ctx, sql, args...).Scan(&text, &changed); err != nil {
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
