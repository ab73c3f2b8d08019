package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/pgsnapshot"
	"github.com/cdc-relay/cdc-relay/internal/pgtime"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Settled is the result of a batch.
type Settled struct {
	// Done rows were changed as decided.
	Done []outbox.Settlement
	// Gone rows are deleted, changed or moved by another session.
	Gone []outbox.Settlement
	// NotVisible rows were streamed before their transaction became visible: the walsender sends flushed WAL before
	// other sessions see the commit. Try them again.
	NotVisible []outbox.Settlement
	// Locked rows are locked by another session. Try them again; they must not delay other rows.
	Locked []outbox.Settlement
	// Kept rows are still there: a trigger or a rule keeps them from being deleted or updated.
	Kept []outbox.Settlement
	// Awaited: a caller of the SQL function outbox_await waited for a row during a statement.
	Awaited bool
}

// outcome is the result of statements. Rows that they did not change are left, until askAbout says why; those that were
// skipped, because another session had locked them, are marked as Locked.
type outcome struct {
	Settled
	// server is the number of the server before the statements.
	server int64
	left   []outbox.Settlement
}

func (o *outcome) add(more outcome) {
	o.Done = append(o.Done, more.Done...)
	o.NotVisible = append(o.NotVisible, more.NotVisible...)
	o.left = append(o.left, more.left...)
	o.Awaited = o.Awaited || more.Awaited
}

// sort adds the rows of a statement: those that it has changed (places from 1), those that its snapshot did not show,
// and those that are left.
func (o *outcome) sort(part []outbox.Settlement, changed []int64, seen pgsnapshot.Snapshot) {
	if len(changed) == len(part) {
		o.Done = append(o.Done, part...)
		return
	}
	done := make([]bool, len(part))
	for _, nth := range changed {
		done[nth-1] = true
	}
	for i, one := range part {
		switch m := one.Message; {
		case done[i]:
			o.Done = append(o.Done, one)
		case m.XID == 0 || m.Server != o.server || seen.Finished(m.XID):
			o.left = append(o.left, one)
		default:
			o.NotVisible = append(o.NotVisible, one)
		}
	}
}

// writes returns the statement of each action.
func (s *Store) writes() []settling {
	return []settling{
		{action: outbox.Delete, sql: s.sql.delete, nearSQL: s.sql.deleteNear},
		{action: outbox.Delete, dropped: true, sql: s.sql.drop, nearSQL: s.sql.dropNear},
		{action: outbox.Retry, sql: s.sql.retry},
		{action: outbox.DeadLetter, sql: s.sql.deadLetter},
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

// Settle writes the decisions, with one statement for each action, and asks about the rows that are left. On an error,
// rows that are in no list may be written nevertheless: settle them again, as Tried.
func (s *Store) Settle(ctx context.Context, batch []outbox.Settlement) (Settled, error) {
	settled := outcome{server: s.Restarts()}
	err := s.settleEach(ctx, batch, &settled)
	if unknown := s.askAbout(ctx, settled.left, &settled.Settled); err == nil {
		err = unknown
	}
	return settled.Settled, err
}

func (s *Store) settleEach(ctx context.Context, batch []outbox.Settlement, settled *outcome) error {
	for _, write := range s.writes() {
		// Rows that were locked at the last try must not send the others the slow way.
		for _, locked := range []bool{false, true} {
			part := slices.DeleteFunc(write.part(batch), func(one outbox.Settlement) bool {
				return one.Locked != locked
			})
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
func (s *Store) settlePart(ctx context.Context, write settling, part []outbox.Settlement, settled *outcome) error {
	template := write.sql
	if write.action == outbox.DeadLetter {
		write.sql = s.extras.fill(ctx, s.pool, s.table, template)
	}
	err := s.settle(ctx, write, part, settled)
	if write.action == outbox.DeadLetter && pgcode.Class(err) == pgcode.SyntaxOrAccess {
		s.extras.forget() // a column may have been dropped since it was read
		write.sql = s.extras.fill(ctx, s.pool, s.table, template)
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
func (s *Store) settle(ctx context.Context, write settling, part []outbox.Settlement, into *outcome) error {
	ctx, cancel := s.boundedFor(ctx, s.moved(part))
	defer cancel()
	if !part[0].Locked { // as the others
		if err := write.run(ctx, s.pool, part, into); !pgcode.Is(err, pgerrcode.LockNotAvailable) {
			return err
		}
	}
	settled := outcome{server: into.server} // counts only once it is committed
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) (err error) {
		err = s.lockFree(ctx, tx, part, &settled)
		free := settled.Done
		settled.Done = nil
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

// lockFree locks the rows that no other session has locked: these are Done.
func (s *Store) lockFree(ctx context.Context, tx pgx.Tx, part []outbox.Settlement, locked *outcome) error {
	var seen pgsnapshot.Snapshot
	var ours []int64
	err := tx.QueryRow(ctx, s.sql.lockFree, settleArgs(part)[:2]...).Scan(&seen, &ours)
	if err != nil {
		return err
	}
	part = slices.Clone(part)
	for i := range part {
		part[i].Locked = true
	}
	for _, nth := range ours {
		part[nth-1].Locked = false
	}
	locked.sort(part, ours, seen)
	for i := range locked.NotVisible {
		locked.NotVisible[i].Locked = false // nobody waits for them
	}
	return nil
}

// run runs the statement on rows that are sorted by id.
func (w settling) run(ctx context.Context, db schema.Querier, part []outbox.Settlement, into *outcome) error {
	sql, args := w.statement(part)
	var seen pgsnapshot.Snapshot
	var changed []int64
	awaited := false
	if err := db.QueryRow(ctx, sql, args...).Scan(&seen, &changed, &awaited); err != nil {
		return err
	}
	into.Awaited = into.Awaited || awaited
	if sql == w.nearSQL {
		positions(changed, part)
	}
	into.sort(part, changed, seen)
	return nil
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
