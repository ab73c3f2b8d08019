package relay

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgerrcode"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/outagelog"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// settler deletes, updates and dead-letters rows in batches. The core decides which. One goroutine, in run, talks to
// the database.
type settler struct {
	core     *core.Core
	store    *store.Store
	table    outbox.Table
	observer *observer
	log      *slog.Logger
	alive    *heartbeat
	trouble  *outagelog.Log
	pending  *pendingRows
	// aside are the rows set aside after the last round.
	aside atomic.Pointer[Aside]
	// locked logs that other sessions have locked published rows, commits that COMMIT hangs: that of the settler, or
	// that of an inserting transaction, whose rows stay invisible.
	locked, commits *outagelog.Log
	// waits counts the rows that are not visible or locked.
	waits atomic.Int64

	// Only run's goroutine uses the fields below.

	waiting waitingRows
	// wrote is when rows were last written, awaited when a caller of outbox_await was last seen, asked when the relay
	// last looked for the reason why published rows wait.
	wrote, awaited, asked time.Time
}

// run settles until ctx is done. Rows still pending then stay unchanged in the table.
func (s *settler) run(ctx context.Context) error {
	for {
		s.alive.beat()
		batch, ok := s.collect(ctx)
		if !ok {
			return nil
		}
		if batch = append(s.waiting.due(time.Now(), s.pending.batch), batch...); len(batch) == 0 {
			continue
		}
		err := s.settleAll(ctx, batch)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		s.tried(ctx)
	}
}

// collect waits until a batch is full or old enough. It returns an empty batch if only waiting rows are due.
func (s *settler) collect(ctx context.Context) (batch []outbox.Settlement, ok bool) {
	due := time.NewTimer(s.waiting.next(time.Now(), heartbeatEvery))
	defer due.Stop()
	select {
	case <-ctx.Done():
		return nil, false
	case <-due.C:
		return nil, true
	case <-s.pending.arrived:
	}
	if !s.pending.full() {
		timer := time.NewTimer(s.batchWait(time.Now()))
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return nil, false
		case <-s.pending.flushNow:
		case <-timer.C:
		}
	}
	return s.pending.take(), true
}

// batchWait returns how long the next batch waits for more rows.
func (s *settler) batchWait(now time.Time) time.Duration {
	if now.Sub(s.wrote) > promptAfter || now.Sub(s.awaited) < promptAfter {
		return promptWait
	}
	return batchWait
}

// settleAll settles rows in batches.
func (s *settler) settleAll(ctx context.Context, all []outbox.Settlement) error {
	for batch := range slices.Chunk(all, s.pending.batch) {
		if err := s.settle(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// settle writes one batch, and retries until it is written or ctx is done. A missing table or column is an error. Rows
// that are not visible, locked or set aside wait.
func (s *settler) settle(ctx context.Context, batch []outbox.Settlement) error {
	wait := newBackoff()
	first := time.Now()
	for {
		s.alive.beat()
		settled, err := s.write(ctx, batch)
		for _, one := range settled.Kept {
			if failed := s.cannotChange(ctx, one, store.ErrUnchanged); failed != nil {
				return failed
			}
		}
		if err == nil {
			s.trouble.Over(event.SettleRecovered, "deleting and updating rows again")
			for _, one := range slices.Concat(settled.NotVisible, settled.Locked) {
				s.waiting.add(one, time.Now())
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		slow := tookTooLong(err)
		answers := pgcode.Of(err) != "" && !pgcode.Is(err, pgerrcode.CannotConnectNow, pgerrcode.AdminShutdown)
		err, gone := s.store.Explain(ctx, err)
		if gone {
			return err
		}
		batch = triedWithout(batch, slices.Concat(settled.Done, settled.Gone, settled.Kept))
		if store.IsRowFault(err) {
			return s.isolate(ctx, batch, err)
		}
		s.trouble.Report(event.SettleFailing, "cannot delete or update published rows: retrying", err)
		if answers && time.Since(first) > suspendAfter {
			s.suspend(ctx, err)
		}
		if slow && len(batch) > 1 { // a trigger of the application may be slow
			return s.isolate(ctx, batch, err)
		}
		if err := sleep(ctx, wait.NextBackOff()); err != nil {
			return err
		}
	}
}

// tookTooLong reports whether a statement has met a limit of time. A smaller one may not.
func tookTooLong(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || pgcode.Is(err, pgerrcode.QueryCanceled)
}

// write tries to write one batch, and reports the rows that were written.
func (s *settler) write(ctx context.Context, batch []outbox.Settlement) (store.Settled, error) {
	began := time.Now()
	s.core.MarkLate(batch)
	watched, end := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() {
		if sleep(watched, hungAfter) == nil {
			s.reportCommit(watched)
		}
	})
	settled, err := s.store.Settle(ctx, batch)
	end()
	watcher.Wait()
	s.observer.settled(settled, time.Since(began))
	if s.wrote = time.Now(); settled.Awaited {
		s.awaited = s.wrote
	}
	s.core.Settled(slices.Concat(settled.Done, settled.Gone))
	return settled, err
}

// triedWithout returns the rows of a batch that an error left unsettled, including invisible ones.
func triedWithout(batch, done []outbox.Settlement) []outbox.Settlement {
	settled := make(map[*outbox.Message]bool, len(done))
	for _, s := range done {
		settled[s.Message] = true
	}
	var unsettled []outbox.Settlement
	for _, s := range batch {
		if !settled[s.Message] {
			s.Tried = true
			unsettled = append(unsettled, s)
		}
	}
	return unsettled
}

// tried tells others which rows wait after a round: health, the core, and the log.
func (s *settler) tried(ctx context.Context) {
	s.waits.Store(int64(len(s.waiting.rows) - s.waiting.aside))
	s.aside.Store(s.waiting.setAside())
	s.resume()
	s.reportWaiting(ctx, time.Now())
}

const (
	// askWhy is the least time between two looks for the reason why published rows wait.
	askWhy = 10 * time.Second
	// hungAfter is how long a statement may take before the settler asks what COMMIT waits for.
	hungAfter = 5 * time.Second
)

// reportWaiting logs why published rows can be neither deleted nor updated yet.
func (s *settler) reportWaiting(ctx context.Context, now time.Time) {
	locked, hidden := s.waiting.why(now)
	if locked == nil {
		s.locked.Over(event.RowUnlocked, "no published row is locked any more")
	}
	if !hidden {
		s.commits.Over(event.CommitReturned, "COMMIT returns again")
	}
	switch {
	case locked == nil && !hidden:
		s.asked = time.Time{}
		return
	case now.Sub(s.asked) <= askWhy:
		return
	}
	s.asked = now
	if locked != nil {
		s.locked.Report(event.RowLocked,
			"cannot delete or update published row: locked by another session; other rows unaffected",
			s.store.Locker(ctx, locked.ID))
	}
	if hidden {
		s.reportCommit(ctx)
	}
}

// reportCommit logs if COMMIT hangs: that of this relay, or that of an inserting transaction.
func (s *settler) reportCommit(ctx context.Context) {
	if hangs := s.store.CommitWaits(ctx); hangs != nil && ctx.Err() == nil {
		s.commits.Report(event.CommitWaits, "published rows cannot be deleted: COMMIT hangs", hangs)
	}
}
