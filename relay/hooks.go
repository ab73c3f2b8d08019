package relay

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay/metrics"
)

// Hooks are called for the results of messages, in programs that embed the relay. Use them only for reactions that may
// be missed.
//
// Each hook has its own goroutine and queue, and the relay never waits for it. If the queue is full, calls are
// dropped and counted (cdc_relay_hook_calls_dropped_total). A panic is recovered, counted (cdc_relay_hook_panics_total)
// and logged. When the relay stops, it waits at most a second for pending calls.
type Hooks struct {
	// Published is called after the broker has confirmed a message. The row is deleted a moment later. If the process
	// dies in between, the message is published again.
	Published func(Event)
	// Rejected is called for each rejection by the broker, and for a message that can never be published.
	Rejected func(Event)
	// DeadLettered is called after a message was moved to the dead-letter table.
	DeadLettered func(Event)
}

// Event is the result of a message, without its payload.
type Event struct {
	ID        int64
	MessageID outbox.UUID
	// Exchange is nil if the row leaves the choice to the publisher.
	Exchange    *string
	RoutingKey  string
	OrderingKey *string // nil: none
	CreatedAt   time.Time
	// Attempts counts the rejections so far, including this one.
	Attempts int
	// PossibleDuplicate: the message may have been published before.
	PossibleDuplicate bool
	// Reason is the reason as a short code; empty for Published.
	Reason outbox.Reason
	// LastError is the text for the column last_error; empty for Published.
	LastError string
	// At is the time of the result, on the clock of this process.
	At time.Time
	// Headers are those that Config.LogHeaders names, and of a Celery task its name and id: "task" and "id". Values are
	// text of at most 255 bytes; nil: none.
	Headers map[string]string
	raw     []byte // all headers; Headers are read in the goroutine of the hook
}

// celeryHeaders tell which task a message is.
func celeryHeaders() []string { return []string{"task", "id"} }

const (
	// hookQueue is how many calls of one hook may wait.
	hookQueue = 1024
	// hookGrace is how long a stopping relay waits for pending calls.
	hookGrace = time.Second
)

// hooks are the configured hooks; nil: not set.
type hooks struct {
	published, rejected, deadLettered *hook
}

func newHooks(given Hooks, headers []string, log *slog.Logger, counts *metrics.Metrics) *hooks {
	one := func(name string, call func(Event)) *hook {
		if call == nil {
			return nil
		}
		dropped, panics := counts.Hook(name)
		return &hook{
			call:     call,
			headers:  append(celeryHeaders(), headers...),
			log:      log.With("hook", name),
			slow:     rate.Sometimes{Interval: time.Minute},
			panicked: rate.Sometimes{Interval: time.Minute},
			queue:    make(chan Event, hookQueue),
			stop:     make(chan struct{}),
			done:     make(chan struct{}),
			dropped:  dropped,
			panics:   panics,
		}
	}
	return &hooks{
		published:    one("published", given.Published),
		rejected:     one("rejected", given.Rejected),
		deadLettered: one("dead_lettered", given.DeadLettered),
	}
}

func (h *hooks) each(f func(*hook)) {
	for _, one := range []*hook{h.published, h.rejected, h.deadLettered} {
		if one != nil {
			f(one)
		}
	}
}

func (h *hooks) start() { h.each(func(one *hook) { go one.run() }) }

// end waits for pending calls, at most hookGrace.
func (h *hooks) end() {
	h.each(func(one *hook) { close(one.stop) })
	ctx, cancel := context.WithTimeout(context.Background(), hookGrace)
	defer cancel()
	h.each(func(one *hook) {
		select {
		case <-one.done:
		case <-ctx.Done():
		}
	})
}

// markedAs reports whether a hook must call the message of a result a possible duplicate.
func markedAs(r outbox.Result) bool {
	if r.Outcome == outbox.Confirmed {
		return r.Message.WasMarked() || r.MaybeSent
	}
	return r.Message.PossibleDuplicate || r.MayHaveArrived()
}

// result calls the hooks for a result of the publisher.
func (h *hooks) result(r outbox.Result, decision outbox.Decision, marked bool) {
	switch r.Outcome {
	case outbox.Confirmed:
		if h.published != nil {
			h.published.add(eventOf(r.Message, marked))
		}
	case outbox.Rejected, outbox.Impossible:
		if h.rejected != nil {
			e := eventOf(r.Message, marked)
			e.Reason, e.LastError = r.Reason, decision.Detail
			if r.Outcome == outbox.Rejected {
				e.Attempts = r.Message.NextAttempts()
			}
			h.rejected.add(e)
		}
	}
}

// moved calls the hook for a row that was moved to the dead-letter table.
func (h *hooks) moved(s outbox.Settlement) {
	if h.deadLettered == nil {
		return
	}
	e := eventOf(s.Message, s.Message.PossibleDuplicate)
	e.Reason, e.LastError = s.Decision.Reason, s.Decision.Detail
	if s.Rejected {
		e.Attempts = s.Message.NextAttempts()
	}
	h.deadLettered.add(e)
}

func eventOf(m *outbox.Message, possibleDuplicate bool) Event {
	return Event{
		ID: m.ID, MessageID: m.MessageID, Exchange: m.Exchange, RoutingKey: m.RoutingKey, OrderingKey: m.OrderingKey,
		CreatedAt: m.CreatedAt, Attempts: m.Attempts, PossibleDuplicate: possibleDuplicate, At: time.Now(),
		raw: m.Headers,
	}
}

// hook decouples one function of the application from the relay.
type hook struct {
	call            func(Event)
	headers         []string
	log             *slog.Logger
	slow, panicked  rate.Sometimes // bound the log
	queue           chan Event     // not closed: a publisher may give results after the end
	stop, done      chan struct{}
	dropped, panics prometheus.Counter
}

func (h *hook) add(e Event) {
	select {
	case h.queue <- e:
	default:
		h.dropped.Inc()
		h.slow.Do(func() {
			h.log.Warn("hook is slow: dropping its calls; messages unaffected",
				"event", event.HookSlow, "waiting", hookQueue)
		})
	}
}

func (h *hook) run() {
	defer close(h.done)
	for {
		select {
		case e := <-h.queue:
			h.guarded(e)
		case <-h.stop:
			for len(h.queue) > 0 {
				h.guarded(<-h.queue)
			}
			return
		}
	}
}

func (h *hook) guarded(e Event) {
	defer func() {
		if p := recover(); p != nil {
			h.panics.Inc()
			h.panicked.Do(func() {
				h.log.Error("hook panicked: message unaffected; further messages are passed to it",
					"event", event.HookPanicked, "id", e.ID, "message_id", e.MessageID.String(),
					"panic", p, "stack", string(debug.Stack()))
			})
		}
	}()
	e.Headers, e.raw = namedHeaders(e.raw, h.headers), nil
	h.call(e)
}
