package relay

import (
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Hooks are told what becomes of messages, for programs that embed the relay. Each has
// a goroutine and a queue of its own, so that it may take its time; the relay never waits
// for one. Where a queue is full, calls are dropped and counted
// (cdc_relay_hook_calls_dropped_total), and a panic is recovered, counted
// (cdc_relay_hook_panics_total) and logged. So a hook is for reactions that may be
// missed, not for bookkeeping: the tables say what is true. A nil hook costs nothing.
//
// When the relay stops, calls that wait are made for up to a second.
type Hooks struct {
	// Published is called after the broker has confirmed a message. Its row is deleted
	// a moment later; if the process dies in between, the message is published again.
	Published func(Event)
	// Refused is called for each refusal by the broker, and for a message that can never
	// be published.
	Refused func(Event)
	// DeadLettered is called after a message has been moved to the dead-letter table.
	DeadLettered func(Event)
}

// Event is a message and what became of it. It holds no payload.
type Event struct {
	ID        int64
	MessageID outbox.UUID
	// Exchange is nil where the row leaves the choice to the publisher.
	Exchange    *string
	RoutingKey  string
	OrderingKey *string // nil: none
	CreatedAt   time.Time
	// Attempts counts the refusals so far, this one among them.
	Attempts int
	// PossibleDuplicate tells that the message may have been published before.
	PossibleDuplicate bool
	// Reason is why, as a short code; empty for Published.
	Reason outbox.Reason
	// LastError is what stands in the column of that name; empty for Published.
	LastError string
	// At is when it happened, by the clock of this process.
	At time.Time
}

const (
	// hookQueue is how many calls of one hook may wait.
	hookQueue = 1024
	// hookGrace is how long calls that wait go on when the relay stops.
	hookGrace = time.Second
	// calm is how long a hook must not have panicked for the next panic to be logged.
	calm = time.Minute
)

// hooks are those of the configuration, nil where none is set.
type hooks struct {
	published, refused, deadLettered *hook
}

func newHooks(given Hooks, log *slog.Logger, counts *metrics) *hooks {
	one := func(name string, call func(Event)) *hook {
		if call == nil {
			return nil
		}
		return &hook{
			name: name, call: call, log: log, queue: make(chan Event, hookQueue), stop: make(chan struct{}), done: make(chan struct{}),
			dropped: counts.hookDropped.WithLabelValues(name), panics: counts.hookPanics.WithLabelValues(name),
		}
	}
	return &hooks{
		published: one("published", given.Published),
		refused:   one("refused", given.Refused), deadLettered: one("dead_lettered", given.DeadLettered),
	}
}

func (h *hooks) all() []*hook {
	var set []*hook
	for _, one := range []*hook{h.published, h.refused, h.deadLettered} {
		if one != nil {
			set = append(set, one)
		}
	}
	return set
}

func (h *hooks) start() {
	for _, one := range h.all() {
		go one.run()
	}
}

// end makes the calls that wait, for a while, and stops.
func (h *hooks) end() {
	grace := time.NewTimer(hookGrace)
	defer grace.Stop()
	for _, one := range h.all() {
		close(one.stop)
	}
	over := false
	for _, one := range h.all() {
		if !over {
			select {
			case <-one.done:
				continue
			case <-grace.C:
				over = true
			}
		}
		one.leave()
	}
}

// result is told what the publisher has reported.
func (h *hooks) result(r outbox.Result, decision outbox.Decision) {
	switch r.Outcome {
	case outbox.Confirmed:
		if h.published != nil {
			h.published.add(eventOf(r.Message, r.Message.WasMarked() || r.MaybeSent))
		}
	case outbox.Refused, outbox.Impossible:
		if h.refused != nil {
			e := eventOf(r.Message, r.Message.PossibleDuplicate || r.MayHaveArrived())
			e.Reason, e.LastError = r.Reason, decision.Detail
			if r.Outcome == outbox.Refused {
				e.Attempts = r.Message.NextAttempts()
			}
			h.refused.add(e)
		}
	}
}

// moved is told of a row that is in the dead-letter table now.
func (h *hooks) moved(s outbox.Settlement) {
	if h.deadLettered == nil {
		return
	}
	e := eventOf(s.Message, s.Message.PossibleDuplicate)
	e.Reason, e.LastError = s.Decision.Reason, s.Decision.Detail
	if s.Refused {
		e.Attempts = s.Message.NextAttempts()
	}
	h.deadLettered.add(e)
}

func eventOf(m *outbox.Message, possibleDuplicate bool) Event {
	return Event{
		ID: m.ID, MessageID: m.MessageID, Exchange: m.Exchange, RoutingKey: m.RoutingKey, OrderingKey: m.OrderingKey,
		CreatedAt: m.CreatedAt, Attempts: m.Attempts, PossibleDuplicate: possibleDuplicate, At: time.Now(),
	}
}

// hook is one function of somebody else's, kept at a distance.
type hook struct {
	name            string
	call            func(Event)
	log             *slog.Logger
	queue           chan Event
	stop, done      chan struct{}
	dropped, panics prometheus.Counter

	// behind tells that calls are being dropped; set by add, cleared by run.
	behind atomic.Bool
	// left tells that nobody waits for the hook any more.
	left atomic.Bool
	// panicked is when it last panicked; it belongs to the goroutine in run.
	panicked time.Time
}

func (h *hook) add(e Event) {
	select {
	case h.queue <- e:
	default:
		h.dropped.Inc()
		if h.behind.CompareAndSwap(false, true) {
			h.log.Warn("a hook is slower than the messages; calls are dropped", "hook", h.name, "waiting", hookQueue)
		}
	}
}

// run makes the calls until stop, and then those that wait. A hook that ends its
// goroutine (runtime.Goexit) gets another.
func (h *hook) run() {
	returned := false
	defer func() {
		if !returned {
			go h.run()
		}
	}()
	for !h.left.Load() {
		select {
		case e := <-h.queue:
			h.guarded(e)
			continue
		default:
		}
		if h.behind.CompareAndSwap(true, false) {
			h.log.Info("the hook has caught up", "hook", h.name)
		}
		select {
		case e := <-h.queue:
			h.guarded(e)
			continue
		case <-h.stop:
		}
		if len(h.queue) == 0 {
			break
		}
	}
	returned = true
	close(h.done)
}

func (h *hook) guarded(e Event) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		h.panics.Inc()
		now := time.Now()
		if now.Sub(h.panicked) > calm {
			h.log.Error("a hook panicked; the relay goes on", "hook", h.name, "panic", p, "stack", string(debug.Stack()))
		}
		h.panicked = now
	}()
	h.call(e)
}

// leave gives a hook up that is not done in time.
func (h *hook) leave() {
	h.left.Store(true)
	waiting := len(h.queue)
	h.dropped.Add(float64(waiting))
	h.log.Warn("a hook was not done in time and is left behind", "hook", h.name, "waiting", waiting)
}
