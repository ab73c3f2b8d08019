package relay

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgerrcode"
	"golang.org/x/time/rate"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/outagelog"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay/metrics"
	"github.com/cdc-relay/cdc-relay/store"
)

// settler deletes, updates and dead-letters rows in batches. The core decides which. One goroutine, in run, talks to
// the database.
type settler struct {
	core   *core.Core
	store  *store.Store
	table  outbox.Table
	log    *slog.Logger
	counts *metrics.Metrics
	hooks  *hooks
	// failed is called with the error of a statement.
	failed  func(error)
	alive   *heartbeat
	trouble *outagelog.Log
	// written counts the rows settled so far: deleted, moved, or with one more attempt.
	written    atomic.Int64
	rejections rejectionLog
	pending    *pendingRows
	late       lateRows

	// Only run's goroutine writes the fields below.

	// invisible are rows that are not visible yet, or that other sessions have locked.
	invisible []outbox.Settlement
	locked    lockedRows
	// aside are rows that can be neither deleted nor updated.
	aside asideRows
}

// rejectionLog is how log lines about rejected messages look. There are few of them: thousands may fail alike.
type rejectionLog struct {
	limit   *rate.Limiter
	headers []string // headers of a message that log lines show
}

// lockedRows are the published rows that other sessions have locked.
type lockedRows struct {
	log *outagelog.Log
	// asked is when the locking session was last looked up.
	asked time.Time
}

const (
	// invisibleAgain is the first wait before an invisible row is tried again, invisibleAtMost the longest. Usually a
	// row is visible within microseconds. If a synchronous standby is down, rows stay invisible until it returns.
	invisibleAgain  = 2 * time.Millisecond
	invisibleAtMost = time.Second
)

// run settles until ctx is done. Rows still pending then stay unchanged in the table.
func (s *settler) run(ctx context.Context) error {
	again := invisibleAgain
	for {
		s.alive.beat()
		batch, ok := s.collect(ctx, again)
		if !ok {
			return nil
		}
		if retry := s.invisible; len(retry) > 0 {
			n := min(len(retry), s.pending.batch)
			batch, s.invisible = append(retry[:n:n], batch...), retry[n:]
		}
		if batch = append(batch, s.dueAside(time.Now())...); len(batch) == 0 {
			continue
		}
		left, err := s.settleAll(ctx, batch)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		s.resume()
		if left < len(batch) {
			again = invisibleAgain
		} else {
			again = min(2*again, invisibleAtMost)
		}
	}
}

// settleAll settles rows in batches. Left counts those that are not visible.
func (s *settler) settleAll(ctx context.Context, all []outbox.Settlement) (left int, err error) {
	for batch := range slices.Chunk(all, s.pending.batch) {
		notVisible, err := s.settle(ctx, batch)
		if err != nil {
			return left, err
		}
		s.invisible = append(s.invisible, notVisible...)
		left += len(notVisible)
	}
	return left, nil
}

// collect waits until a batch is full or old enough. It returns an empty batch if only invisible rows are due.
func (s *settler) collect(ctx context.Context, again time.Duration) (batch []outbox.Settlement, ok bool) {
	var retry <-chan time.Time
	if len(s.invisible) > 0 {
		timer := time.NewTimer(again)
		defer timer.Stop()
		retry = timer.C
	}
	idle := time.NewTimer(heartbeatEvery)
	defer idle.Stop()
	select {
	case <-ctx.Done():
		return nil, false
	case <-retry:
		return nil, true
	case <-idle.C:
		return s.pending.take(), true
	case <-s.pending.arrived:
	}
	if !s.pending.full() {
		timer := time.NewTimer(batchWait)
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

// settle writes one batch, and retries until it is written or ctx is done. A missing table or column is an error. It
// returns the rows that are not visible.
func (s *settler) settle(ctx context.Context, batch []outbox.Settlement) (notVisible []outbox.Settlement, err error) {
	wait := newBackoff()
	first := time.Now()
	for {
		s.alive.beat()
		began := time.Now()
		settled, err := s.store.Settle(ctx, batch)
		for _, one := range settled.Kept {
			again, failed := s.cannotChange(ctx, one, store.ErrUnchanged)
			if failed != nil {
				return nil, failed
			}
			notVisible = append(notVisible, again...)
		}
		s.report(settled)
		done := append(settled.Done, settled.Gone...)
		s.written.Add(int64(len(done)))
		s.counts.Settled(len(done), time.Since(began))
		s.core.Settled(done)
		s.log.Debug("deleted or updated rows", "rows", len(done), "not_visible", len(settled.NotVisible), "locked", len(settled.Locked),
			"took", time.Since(began).Round(time.Microsecond))
		if err == nil {
			s.trouble.Over(event.SettleRecovered, "deleting and updating rows again")
			s.tellLocked(ctx, settled.Locked)
			return append(append(notVisible, settled.NotVisible...), settled.Locked...), nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		answers := pgcode.Of(err) != "" && !pgcode.Is(err, pgerrcode.CannotConnectNow, pgerrcode.AdminShutdown)
		err, gone := s.store.Explain(ctx, err)
		if gone {
			return nil, err
		}
		batch = triedWithout(batch, append(done, settled.Kept...))
		if store.IsRowFault(err) {
			rest, err := s.isolate(ctx, batch, err)
			return append(notVisible, rest...), err
		}
		s.trouble.Report(event.SettleFailing, "cannot delete or update published rows: retrying", err)
		if answers && time.Since(first) > suspendAfter {
			s.suspend(err)
		}
		s.failed(err)
		if err := sleep(ctx, wait.NextBackOff()); err != nil {
			return nil, err
		}
	}
}

// askLocker is the least time between two look-ups of the locking session.
const askLocker = 10 * time.Second

// tellLocked logs the session that locks a row, and when no row is locked any more.
func (s *settler) tellLocked(ctx context.Context, locked []outbox.Settlement) {
	switch {
	case len(locked) > 0 && time.Since(s.locked.asked) > askLocker:
		s.locked.asked = time.Now()
		s.locked.log.Report(event.RowLocked, "cannot delete or update published row: locked by another session; other rows unaffected",
			s.store.Locker(ctx, locked[0].Message.ID))
	case len(locked) == 0 && !slices.ContainsFunc(s.invisible, func(one outbox.Settlement) bool { return one.Locked }):
		s.locked.asked = time.Time{}
		s.locked.log.Over(event.RowUnlocked, "no published row is locked any more")
	}
}

// triedWithout returns the rows of a batch that an error left unsettled, including invisible ones.
func triedWithout(batch, done []outbox.Settlement) []outbox.Settlement {
	settled := make(map[*outbox.Message]bool, len(done))
	for _, s := range done {
		settled[s.Message] = true
	}
	var rest []outbox.Settlement
	for _, s := range batch {
		if !settled[s.Message] {
			s.Tried = true
			rest = append(rest, s)
		}
	}
	return rest
}

// claimWritten records the rows that a claim has written.
func (s *settler) claimWritten(rows []outbox.Settlement, took time.Duration) {
	var done, late []outbox.Settlement
	for _, one := range rows {
		switch one.Decision.Action {
		case outbox.Release:
		case outbox.Postpone:
			late = append(late, one)
		default:
			done = append(done, one)
		}
	}
	s.late.note(late)
	s.log.Debug("claim committed", "rows", len(rows), "deleted_or_updated", len(done), "took", took.Round(time.Microsecond))
	s.report(store.Settled{Done: done})
	s.written.Add(int64(len(done)))
	s.counts.Settled(len(done), took)
	s.counts.Swept(len(done))
}

func (s *settler) report(settled store.Settled) {
	s.late.note(settled.Done)
	s.late.note(settled.Gone)
	for _, done := range settled.Done {
		m := done.Message
		s.counts.Written(done)
		switch done.Decision.Action {
		case outbox.DeadLetter:
			s.hooks.moved(done)
			if done.Decision.Reason == outbox.ReasonExpired && !s.rejections.limit.Allow() {
				continue // thousands may expire in one outage
			}
			s.log.With(s.headersOf(m)...).Error("message dead-lettered: not retried until requeued", "event", event.MessageDeadLettered, "id", m.ID, "message_id", m.MessageID.String(),
				"routing_key", outbox.Shortened(m.RoutingKey), "reason", string(done.Decision.Reason), "error", done.Decision.Detail,
				"hint", s.table.Command("explain", strconv.FormatInt(m.ID, 10))+"  # says what to fix; then dead-letter requeue")
		case outbox.Retry:
			if !s.rejections.limit.Allow() {
				continue // counted in messages_refused_total
			}
			log := s.log.With(s.headersOf(m)...)
			if _, fix := done.Decision.Reason.Advice(m.Exchange, done.Decision.Detail); fix != "" {
				log = log.With("hint", "# "+fix)
			}
			log.Warn("message rejected: retrying later", "event", event.MessageRejected, "id", m.ID, "message_id", m.MessageID.String(), "routing_key", m.RoutingKey,
				"attempts", m.NextAttempts(), "retry_in", done.Decision.Delay.Round(time.Millisecond), "error", done.Decision.Detail)
		}
	}
}

// headersOf are those headers of a message that its log lines show, as attributes. The names are the headers' own.
func (s *settler) headersOf(m *outbox.Message) (attributes []any) {
	if len(s.rejections.headers) == 0 || len(m.Headers) == 0 {
		return nil
	}
	var headers map[string]json.RawMessage
	if json.Unmarshal(outbox.HideBody(m.Headers), &headers) != nil {
		return nil // the error of the message names this
	}
	for _, name := range s.rejections.headers {
		value, there := headers[name]
		if !there {
			continue
		}
		var text string
		if json.Unmarshal(value, &text) != nil {
			text = string(value)
		}
		attributes = append(attributes, name, outbox.Shortened(text))
	}
	return attributes
}
