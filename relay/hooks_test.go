package relay

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay/metrics"
)

// hookCalls collects the calls of hooks.
type hookCalls struct {
	mu     sync.Mutex
	events map[string][]Event
}

func (t *hookCalls) hook(name string) func(Event) {
	return func(e Event) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.events == nil {
			t.events = map[string][]Event{}
		}
		t.events[name] = append(t.events[name], e)
	}
}

func (t *hookCalls) count(name string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.events[name])
}

// One of them panics each time, which harms neither messages nor later calls.
func TestHooksReceiveTheResultOfEachMessage(t *testing.T) {
	i := newInstance(t)
	var calls hookCalls
	i.config.MaxRetries = 1
	published := func(e Event) {
		calls.hook("published")(e)
		panic("of a hook")
	}
	i.config.Hooks = Hooks{Published: published, Rejected: calls.hook("rejected"), DeadLettered: calls.hook("dead")}
	registry := prometheus.NewRegistry()
	_, stop := i.startWith(i.publisher(), registry)
	var id int64
	i.load(20)
	err := i.db.QueryRow(t.Context(), `INSERT INTO outbox (routing_key, payload, ordering_key) VALUES ('nowhere', '1', 'k') RETURNING id`).Scan(&id)
	must(t, err)
	i.await("the table is empty", func() bool { return i.rowsLeft() == 0 })
	stop() // makes the pending calls
	if n := calls.count("published"); n != 20 || i.arrived() != 20 {
		t.Errorf("the Published hook got %d messages, %d arrived, want 20", n, i.arrived())
	}
	scrapeOf(t, registry).want(t, "cdc_relay_hook_panics_total published", 20)
	var attempts []int
	for _, e := range calls.events["rejected"] {
		attempts = append(attempts, e.Attempts)
		if e.ID != id || e.Reason != outbox.ReasonUnroutable || !strings.HasPrefix(e.LastError, "unroutable: ") {
			t.Errorf("rejected: %+v", e)
		}
	}
	if !slices.Equal(attempts, []int{1, 2}) {
		t.Errorf("attempts were %v", attempts)
	}
	if n := calls.count("dead"); n != 1 {
		t.Fatalf("the DeadLettered hook got %d messages, want 1", n)
	}
	e := calls.events["dead"][0]
	if e.ID != id || e.Reason != outbox.ReasonRetriesExceeded || e.Attempts != 2 || e.RoutingKey != "nowhere" ||
		e.OrderingKey == nil || *e.OrderingKey != "k" || e.At.IsZero() || e.CreatedAt.IsZero() || e.MessageID == (outbox.UUID{}) {
		t.Errorf("dead letter: %+v", e)
	}
}

func TestABlockedHookDelaysNoMessage(t *testing.T) {
	i := newInstance(t)
	block := make(chan struct{})
	defer close(block)
	var calls hookCalls
	i.config.Hooks = Hooks{Published: func(Event) { <-block }, DeadLettered: calls.hook("dead")}
	i.config.MaxRetries = 0
	registry := prometheus.NewRegistry()
	_, stop := i.startWith(i.publisher(), registry)
	const rows = hookQueue + 500
	i.load(rows)
	i.exec(`INSERT INTO outbox (routing_key, payload) VALUES ('nowhere', '1')`)
	i.await("all are delivered", func() bool { return i.rowsLeft() == 0 && i.arrived() == rows })
	i.await("another hook is called", func() bool { return calls.count("dead") == 1 })
	s := scrapeOf(t, registry)
	s.want(t, "cdc_relay_hook_calls_dropped_total published", rows-hookQueue-1)
	s.want(t, "cdc_relay_hook_calls_dropped_total dead_lettered", 0)
	stop() // although the hook never returns
}

func newTestMetrics(t *testing.T) *metrics.Metrics {
	no := func() bool { return false }
	m, err := metrics.New(prometheus.NewRegistry(), metrics.By{}, func() int { return 0 }, no, no)
	must(t, err)
	return m
}

// A hook that has been slow panics next, again and again within a minute.
func TestASlowHookHidesNoPanicAndPanicsDoNotFillTheLog(t *testing.T) {
	var log bytes.Buffer
	hooks := newHooks(Hooks{Rejected: func(Event) { panic("of a hook") }}, nil, slog.New(slog.NewTextHandler(&log, nil)), newTestMetrics(t))
	for range hookQueue + 1 {
		hooks.rejected.add(Event{ID: 7})
	}
	hooks.start()
	hooks.end()
	hooks.rejected.add(Event{ID: 8}) // of a publisher that gives results after the end
	for _, want := range []string{"event=hook_slow", "event=hook_panicked", "id=7", "hooks_test.go"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in the log:\n%s", want, log.String())
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 2 {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
}

func TestWithoutHooksAResultAllocatesNothing(t *testing.T) {
	hooks := newHooks(Hooks{}, nil, slog.New(slog.DiscardHandler), newTestMetrics(t))
	r := outbox.Result{Outcome: outbox.Confirmed, Message: &outbox.Message{CommittedAt: time.Now()}}
	if n := testing.AllocsPerRun(1000, func() { hooks.result(r, outbox.Decision{Action: outbox.Delete}, markedAs(r)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
