package relay

import (
	"context"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/time/rate"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay/core"
	"github.com/cdc-relay/cdc-relay/store"
)

// settler writes what became of messages, in batches. The publisher's goroutines
// hand results in; one goroutine, in Run, talks to the database.
type settler struct {
	core    *core.Core
	store   *store.Store
	publish func(*outbox.Message)
	log     *slog.Logger
	counts  *metrics
	hooks   *hooks
	tracer  Tracer // nil: none
	policy  store.Policy
	// refused is told what a statement failed with.
	refused func(error)
	// batch is how many rows a statement takes at most, enough for how many it does not wait for more.
	batch, enough int

	arrived chan struct{} // signalled when pending is empty no more
	hurried chan struct{} // signalled when pending shall not wait for more
	// locked tells of rows that other sessions hold locked.
	locked *outageLog
	// lockerAsked is when the session that locks a row was asked for. Only run's goroutine uses it.
	lockerAsked time.Time
	alive       *heartbeat
	trouble     *outageLog
	// written counts the rows settled so far.
	written    atomic.Int64
	logHeaders []string // of messages, for log lines about them
	// refusals bounds the log lines of rejected messages: thousands may fail alike.
	refusals *rate.Limiter

	mu struct {
		sync.Mutex
		pending []outbox.Settlement
	}
	// invisible are rows that the database does not show yet, or that others hold locked.
	// Only Run's goroutine uses it.
	invisible []outbox.Settlement
	// aside are rows that nothing can be written of. asideAt is when they are tried again.
	aside   asideRows
	asideAt time.Time
}

const (
	// linger is how long a batch waits to fill up: a statement for each row would cost both
	// sides most of what a message costs. Nothing waits for these deletes; what they
	// add to is how much is published again after a crash.
	linger = 50 * time.Millisecond
	// invisibleAgain is how soon a row that is not visible yet is tried again, at first
	// and at the latest: usually it takes microseconds, behind a synchronous standby
	// that is down it takes until that is back.
	invisibleAgain  = 2 * time.Millisecond
	invisibleAtMost = time.Second
)

// deliver takes a result in. It is called from the publisher's goroutines.
func (s *settler) deliver(r outbox.Result) {
	s.counts.result(r)
	if s.tracer != nil {
		s.tracer.Delivered(r)
	}
	decision := store.Decide(r, s.policy, rand.Float64(), time.Now())
	s.hooks.result(r, decision)
	write, next := s.core.Resolved(r, decision)
	if next != nil {
		s.publish(next)
	}
	if write {
		s.add(r.Message.OrderingKey != nil && next == nil, outbox.NewSettlement(r, decision))
	}
}

// add has rows settled, with hurry before the batch is full.
func (s *settler) add(hurry bool, rows ...outbox.Settlement) {
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
	if pending >= s.enough || (hurry && s.core.Behind(rows)) {
		signal(s.hurried)
	}
}

// take hands out the next batch.
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

// run settles until ctx is done; what is still pending then is left as it is in the
// table.
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
			s.core.TurnedVisible(retry[:n])
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

// settleAll writes what may be more than one statement takes. left are those that are not visible.
func (s *settler) settleAll(ctx context.Context, all []outbox.Settlement) (left int, err error) {
	for batch := range slices.Chunk(all, s.batch) {
		notVisible, err := s.settle(ctx, batch)
		if err != nil {
			return left, err
		}
		s.core.TurnedInvisible(notVisible)
		s.invisible = append(s.invisible, notVisible...)
		left += len(notVisible)
	}
	return left, nil
}

// collect waits for a batch to be full or old enough. It returns an empty one when
// only invisible rows are to be tried again.
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

// enoughOf a window: rows that wait to be deleted hold their places in it, and a small one would
// be full of them before the broker is busy.
func enoughOf(maxInFlight, batch int) int { return min(batch, max(maxInFlight/4, 1)) }

// settle writes one batch, and tries until it is written or ctx is done. A column or
// table that is gone ends it.
func (s *settler) settle(ctx context.Context, batch []outbox.Settlement) ([]outbox.Settlement, error) {
	wait := newBackoff()
	tried := func(one outbox.Settlement) bool { return one.Locked } // perhaps by a try without an answer
	first := time.Now()
	for again := slices.ContainsFunc(batch, tried); ; again = true {
		s.alive.beat()
		began := time.Now()
		settled, err := s.try(ctx, batch, again)
		s.report(settled)
		done := append(settled.Done, settled.Gone...)
		s.written.Add(int64(len(done)))
		s.counts.settled(len(done), time.Since(began))
		s.core.Settled(done)
		s.log.Debug("deleted or updated rows", "rows", len(done), "not_visible", len(settled.NotVisible), "locked", len(settled.Locked),
			"took", time.Since(began).Round(time.Microsecond))
		if err == nil {
			s.trouble.over(event.SettleRecovered, "deleting and updating rows again")
			s.tellLocked(ctx, settled.Locked)
			return append(settled.NotVisible, settled.Locked...), nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		answers := pgcode.Of(err) != "" && !pgcode.Is(err, pgcode.CannotConnectNow, pgcode.AdminShutdown)
		err, gone := s.store.Explain(ctx, err)
		if gone {
			return nil, err
		}
		batch = without(batch, done)
		if store.IsRowFault(err) {
			return s.isolate(ctx, batch, err)
		}
		s.trouble.report(event.SettleFailing, "cannot delete or update published rows: retrying", err)
		if answers && time.Since(first) > suspendAfter {
			s.suspend(err)
		}
		s.refused(err)
		if err := sleep(ctx, wait.NextBackOff()); err != nil {
			return nil, err
		}
	}
}

// try settles a batch once. Again: the try before has failed, and may have come through all the same.
func (s *settler) try(ctx context.Context, batch []outbox.Settlement, again bool) (store.Settled, error) {
	settled, err := s.store.Settle(ctx, batch)
	if err == nil && len(settled.Gone) > 0 {
		var kept []outbox.Settlement
		kept, settled.Gone, err = s.store.Undeleted(ctx, settled.Gone)
		for _, one := range kept {
			s.setAside(one, store.ErrUnchanged)
		}
	}
	if again {
		if unknown := s.store.FindMoved(ctx, &settled); err == nil {
			err = unknown
		}
	}
	return settled, err
}

// askLocker is how often the session that locks a row is asked for.
const askLocker = 10 * time.Second

// tellLocked names the session that locks a row, and tells when no row is locked any more.
func (s *settler) tellLocked(ctx context.Context, locked []outbox.Settlement) {
	switch {
	case len(locked) > 0 && time.Since(s.lockerAsked) > askLocker:
		s.lockerAsked = time.Now()
		s.locked.report(event.RowLocked, "cannot delete or update published row: locked by another session; other rows unaffected",
			s.store.Locker(ctx, locked[0].Message.ID))
	case len(locked) == 0 && !slices.ContainsFunc(s.invisible, func(one outbox.Settlement) bool { return one.Locked }):
		s.lockerAsked = time.Time{}
		s.locked.over(event.RowUnlocked, "no published row is locked any more")
	}
}

// without returns what of a batch is still to be settled after an error: rows not
// visible yet are tried again with the rest.
func without(batch, done []outbox.Settlement) []outbox.Settlement {
	settled := make(map[*outbox.Message]bool, len(done))
	for _, s := range done {
		settled[s.Message] = true
	}
	var rest []outbox.Settlement
	for _, s := range batch {
		if !settled[s.Message] {
			rest = append(rest, s)
		}
	}
	return rest
}

// claimWritten takes in what a claim has written.
func (s *settler) claimWritten(rows []outbox.Settlement, took time.Duration) {
	var done []outbox.Settlement
	for _, one := range rows {
		if one.Decision.Action != outbox.Release {
			done = append(done, one)
		}
	}
	s.log.Debug("claim committed", "rows", len(rows), "deleted_or_updated", len(done), "took", took.Round(time.Microsecond))
	s.report(store.Settled{Done: done})
	s.written.Add(int64(len(done)))
	s.counts.settled(len(done), took)
	s.counts.swept(len(done))
}

func (s *settler) report(settled store.Settled) {
	for _, done := range settled.Done {
		m := done.Message
		switch done.Decision.Action {
		case outbox.Delete:
			switch done.Decision.Reason {
			case outbox.ReasonExpired:
				s.counts.expired.Inc()
			case outbox.ReasonCoalesced:
				s.counts.coalesced.Inc()
			default:
				s.counts.deleted.Inc()
			}
		case outbox.DeadLetter:
			s.counts.deadLettered.inc(m.RoutingKey)
			s.hooks.moved(done)
			if done.Decision.Reason == outbox.ReasonExpired {
				s.counts.expired.Inc()
				if !s.refusals.Allow() {
					continue // thousands may expire in one outage
				}
			}
			s.log.With(s.headersOf(m)...).Error("message dead-lettered", "event", event.MessageDeadLettered, "id", m.ID, "message_id", m.MessageID.String(),
				"routing_key", outbox.Shortened(m.RoutingKey), "reason", string(done.Decision.Reason), "error", done.Decision.Detail)
		case outbox.Retry:
			if !s.refusals.Allow() {
				continue // counted in messages_refused_total
			}
			s.log.With(s.headersOf(m)...).Warn("message rejected: retrying later", "event", event.MessageRejected, "id", m.ID, "message_id", m.MessageID.String(), "routing_key", m.RoutingKey,
				"attempts", m.NextAttempts(), "retry_in", done.Decision.Delay.Round(time.Millisecond), "error", done.Decision.Detail)
		}
	}
}

// headersOf are those headers of a message that its log lines show, as attributes. The names are the headers' own.
func (s *settler) headersOf(m *outbox.Message) (attributes []any) {
	if len(s.logHeaders) == 0 || len(m.Headers) == 0 {
		return nil
	}
	var headers map[string]json.RawMessage
	if json.Unmarshal(m.Headers, &headers) != nil {
		return nil // which the error of the message is about
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

// newBackoff is for what is tried again until it works: 50 ms to a second, so that
// the relay is back within two seconds of the end of an outage.
func newBackoff() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = 50 * time.Millisecond
	b.MaxInterval = time.Second
	b.Multiplier = 2
	b.RandomizationFactor = 0.2
	return b
}

// newUnreadBackoff is for streams that end before they have come to their start, one after the other: each
// begins the sweeps again. The slot is then free for so long that rows are taken without it.
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
