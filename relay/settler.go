package relay

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
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
	failed func(error)
	// batch is the most rows in a statement; from enough rows on, a statement does not wait for more.
	batch, enough int

	arrived chan struct{} // signalled when pending becomes non-empty
	hurried chan struct{} // signalled when pending must be written now
	// locked logs rows that other sessions have locked.
	locked *outagelog.Log
	// lockerAsked is when the locking session was last looked up. Only run's goroutine uses it.
	lockerAsked time.Time
	alive       *heartbeat
	trouble     *outagelog.Log
	// written counts the rows settled so far: deleted, moved, or with one more attempt.
	written    atomic.Int64
	logHeaders []string // headers of a message that log lines show
	// rejectionLog limits the log lines about rejected messages: thousands may fail alike.
	rejectionLog *rate.Limiter

	mu struct {
		sync.Mutex
		pending []outbox.Settlement
		// late are rows that a claim has left without an answer, and that are not settled since. Nil unless draining.
		late map[outbox.Ref]bool
	}
	// invisible are rows that are not visible yet, or that other sessions have locked. Only run's goroutine uses it.
	invisible []outbox.Settlement
	// aside are rows that can be neither deleted nor updated; asideAt is when they are tried again. Only run's
	// goroutine uses them.
	aside   asideRows
	asideAt time.Time
}

const (
	// linger is how long a batch waits for more rows. A statement for each row would be most of the cost of a message.
	// Only a crash makes the delay visible: more messages are published again.
	linger = 50 * time.Millisecond
	// invisibleAgain is the first wait before an invisible row is tried again, invisibleAtMost the longest. Usually a
	// row is visible within microseconds. If a synchronous standby is down, rows stay invisible until it returns.
	invisibleAgain  = 2 * time.Millisecond
	invisibleAtMost = time.Second
)

// add queues rows for the next batch. Soon: write them at once.
func (s *settler) add(rows []outbox.Settlement, soon bool) {
	if len(rows) == 0 {
		return
	}
	s.mu.Lock()
	before := len(s.mu.pending)
	s.mu.pending = append(s.mu.pending, rows...)
	pending := len(s.mu.pending)
	s.mu.Unlock()
	if before == 0 {
		signal(s.arrived)
	}
	if pending >= s.enough || soon {
		signal(s.hurried)
	}
}

// take returns the next batch.
func (s *settler) take() []outbox.Settlement {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(s.mu.pending), s.batch)
	batch := s.mu.pending[:n:n]
	if s.mu.pending = s.mu.pending[n:]; len(s.mu.pending) == 0 {
		s.mu.pending = nil
	} else {
		signal(s.arrived)
	}
	return batch
}

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
			n := min(len(retry), s.batch)
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
	for batch := range slices.Chunk(all, s.batch) {
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
		return s.take(), true
	case <-s.arrived:
	}
	if !s.full() {
		timer := time.NewTimer(linger)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return nil, false
		case <-s.hurried:
		case <-timer.C:
		}
	}
	return s.take(), true
}

func (s *settler) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.pending) >= s.enough
}

// enoughOf returns the batch size from which the settler does not wait. Rows to be deleted occupy the window, so a
// small window must not wait for a full batch.
func enoughOf(maxInFlight, batch int) int { return min(batch, max(maxInFlight/4, 1)) }

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
		answers := pgcode.Of(err) != "" && !pgcode.Is(err, pgcode.CannotConnectNow, pgcode.AdminShutdown)
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
	case len(locked) > 0 && time.Since(s.lockerAsked) > askLocker:
		s.lockerAsked = time.Now()
		s.locked.Report(event.RowLocked, "cannot delete or update published row: locked by another session; other rows unaffected",
			s.store.Locker(ctx, locked[0].Message.ID))
	case len(locked) == 0 && !slices.ContainsFunc(s.invisible, func(one outbox.Settlement) bool { return one.Locked }):
		s.lockerAsked = time.Time{}
		s.locked.Over(event.RowUnlocked, "no published row is locked any more")
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
	s.noteLate(late)
	s.log.Debug("claim committed", "rows", len(rows), "deleted_or_updated", len(done), "took", took.Round(time.Microsecond))
	s.report(store.Settled{Done: done})
	s.written.Add(int64(len(done)))
	s.counts.Settled(len(done), took)
	s.counts.Swept(len(done))
}

func (s *settler) report(settled store.Settled) {
	s.noteLate(settled.Done)
	s.noteLate(settled.Gone)
	for _, done := range settled.Done {
		m := done.Message
		s.counts.Written(done)
		switch done.Decision.Action {
		case outbox.DeadLetter:
			s.hooks.moved(done)
			if done.Decision.Reason == outbox.ReasonExpired && !s.rejectionLog.Allow() {
				continue // thousands may expire in one outage
			}
			s.log.With(s.headersOf(m)...).Error("message dead-lettered: not retried until requeued", "event", event.MessageDeadLettered, "id", m.ID, "message_id", m.MessageID.String(),
				"routing_key", outbox.Shortened(m.RoutingKey), "reason", string(done.Decision.Reason), "error", done.Decision.Detail,
				"hint", s.table.Command("explain", strconv.FormatInt(m.ID, 10))+"  # says what to fix; then dead-letter requeue")
		case outbox.Retry:
			if !s.rejectionLog.Allow() {
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

// noteLate keeps late, for a drain.
func (s *settler) noteLate(settled []outbox.Settlement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range settled {
		switch {
		case s.mu.late == nil:
			return
		case one.Decision.Action == outbox.Postpone:
			s.mu.late[one.Message.Ref()] = true
		default:
			delete(s.mu.late, one.Message.Ref())
		}
	}
}

// stillLate counts late.
func (s *settler) stillLate() (rows int, first int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ref := range s.mu.late {
		first = min(ref.ID, cmp.Or(first, ref.ID))
	}
	return len(s.mu.late), first
}

// headersOf are those headers of a message that its log lines show, as attributes. The names are the headers' own.
func (s *settler) headersOf(m *outbox.Message) (attributes []any) {
	if len(s.logHeaders) == 0 || len(m.Headers) == 0 {
		return nil
	}
	var headers map[string]json.RawMessage
	if json.Unmarshal(outbox.HideBody(m.Headers), &headers) != nil {
		return nil // the error of the message names this
	}
	for _, name := range s.logHeaders {
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

// newBackoff retries after 50 ms to 1 s, so that the relay works again within two seconds after an outage.
func newBackoff() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = 50 * time.Millisecond
	b.MaxInterval = time.Second
	b.Multiplier = 2
	b.RandomizationFactor = 0.2
	return b
}

// newUnreadBackoff is for streams that end before they reach their start. Each of them restarts the sweeps. The longer
// wait leaves the slot free, so that relays claim rows without it.
func newUnreadBackoff() *backoff.ExponentialBackOff {
	b := newBackoff()
	b.MaxInterval = 20 * time.Second
	return b
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
