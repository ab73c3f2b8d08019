package relay

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/outboxtest"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
)

// No publisher gets a row that nobody can publish, so none has to check for it.
func TestAPublisherGetsOnlyMessagesThatCanBePublished(t *testing.T) {
	for _, mode := range []Mode{ModePoll, ModeAuto} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			publishesOnlyWhatCanBePublished(t, mode)
		})
	}
}

func publishesOnlyWhatCanBePublished(t *testing.T, mode Mode) {
	i := newInstance(t)
	i.exec("ALTER TABLE outbox ADD tenant text")
	dead := make(chan Event, 100)
	i.config.Mode, i.config.HeaderColumns = mode, []string{"tenant"}
	i.config.Hooks.DeadLettered = func(e Event) { dead <- e }
	publisher := outboxtest.NewPublisher(nil)
	_, stop := i.startWith(publisher, prometheus.NewRegistry())
	defer stop()
	arrives := func(key string) {
		t.Helper()
		before := len(publisher.Messages())
		i.exec("INSERT INTO outbox (routing_key, payload) VALUES ($1, '1')", key)
		i.await(key, func() bool { return len(publisher.Messages()) > before })
		if got := publisher.Messages()[before].RoutingKey; got != key {
			t.Errorf("the publisher has got %q", got)
		}
	}
	arrives("first") // a relay in ModeAuto streams what comes now
	large := "(SELECT jsonb_build_object('a', jsonb_agg('{}'::jsonb)) FROM generate_series(1, 300000))"
	wanted := map[string]outbox.Reason{}
	for key, row := range map[string]struct {
		columns, values string
		reason          outbox.Reason
	}{
		"expired":                {"expires_at, payload", "now() - interval '1 hour', '1'", outbox.ReasonExpired},
		"expires now":            {"expires_at, payload", "clock_timestamp(), '1'", outbox.ReasonExpired},
		"always expired":         {"expires_at, payload", "'-infinity', '1'", outbox.ReasonExpired},
		"both":                   {"payload, payload_bytes", "'1', '1'", outbox.ReasonInvalidRow},
		"none":                   {"payload", "NULL", outbox.ReasonInvalidRow},
		"version":                {"schema_version, payload", "0, '1'", outbox.ReasonInvalidRow},
		"attempts":               {"attempts, payload", "-1, '1'", outbox.ReasonInvalidRow},
		"max_attempts":           {"max_attempts, payload", "-1, '1'", outbox.ReasonInvalidRow},
		"large properties":       {"properties, payload", large + ", '1'", outbox.ReasonInvalidProperties},
		"large headers":          {"headers, payload", large + ", '1'", outbox.ReasonInvalidHeaders},
		"long header":            {"headers, payload", "jsonb_build_object('a', repeat('b', 1048577)), '1'", outbox.ReasonInvalidHeaders},
		"long number":            {"headers, payload", "jsonb_build_array(1e131071, 1e131071, 1e131071, 1e131071, 1e131071, 1e131071, 1e131071, 1e131071), '1'", outbox.ReasonInvalidHeaders},
		"long key":               {"properties, payload", "jsonb_build_object(repeat('b', 1048577), 1), '1'", outbox.ReasonInvalidProperties},
		"long column":            {"tenant, payload", "repeat('b', 1048577), '1'", outbox.ReasonInvalidHeaders},
		"array":                  {"headers, payload", "'[1]', '1'", outbox.ReasonInvalidHeaders},
		"null headers":           {"headers, payload", "'null', '1'", outbox.ReasonInvalidHeaders},
		"text":                   {"properties, payload", "'\"priority\"', '1'", outbox.ReasonInvalidProperties},
		"number":                 {"properties, payload", "'-1', '1'", outbox.ReasonInvalidProperties},
		"long exchange":          {"exchange, payload", "repeat('e', 256), '1'", outbox.ReasonInvalidRouting},
		"huge exchange":          {"exchange, payload", "repeat('e', 3000000), '1'", outbox.ReasonInvalidRouting},
		strings.Repeat("k", 256): {"payload", "'1'", outbox.ReasonInvalidRouting},
	} {
		i.exec("INSERT INTO outbox (routing_key, " + row.columns + ") VALUES (" + outbox.QuoteLiteral(key) + ", " + row.values + ")")
		wanted[key] = row.reason
	}
	for range len(wanted) {
		e := await.Receive(t, "a dead letter", dead)
		if e.Reason != wanted[e.RoutingKey] {
			t.Errorf("%q is a dead letter with reason %q, want %q", e.RoutingKey, e.Reason, wanted[e.RoutingKey])
		}
	}
	arrives("last")
}

// excessive is a publisher that delivers each result several times at once, and results for messages that it was not
// given.
type excessive struct {
	publish.Publisher
	publish.Sink
	last outbox.Result
}

func (p *excessive) Run(ctx context.Context, sink publish.Sink) error {
	p.Sink = sink
	return p.Publisher.Run(ctx, p)
}

func (p *excessive) Deliver(r outbox.Result) {
	p.last = r
	p.Sink.Deliver(r)
	var all sync.WaitGroup
	for _, outcome := range []outbox.Outcome{0, outbox.Confirmed, outbox.Rejected, outbox.Impossible, outbox.Unknown, outbox.NotSent, 99} {
		for _, m := range []*outbox.Message{r.Message, {Row: outbox.Row{ID: r.Message.ID + 1}}, {Row: r.Message.Row}, nil} {
			all.Go(func() { p.Sink.Deliver(outbox.Result{Message: m, Outcome: outcome, RetryIn: time.Millisecond}) })
		}
	}
	all.Wait()
}

func TestOnlyTheFirstResultOfAPublishedMessageCounts(t *testing.T) {
	for _, mode := range []Mode{ModePoll, ModeAuto} {
		i := newInstance(t)
		i.config.Mode = mode
		var calls hookCalls
		i.config.Hooks = Hooks{Published: calls.hook("any"), Rejected: calls.hook("any"), DeadLettered: calls.hook("any")}
		got := outboxtest.NewPublisher(nil)
		publisher := &excessive{Publisher: got}
		var log bytes.Buffer
		r := i.new(publisher, slog.NewTextHandler(&log, nil), prometheus.NewRegistry())
		stop := i.run(r)
		const rows = 50
		i.load(rows)
		i.await("the table is empty", func() bool { return i.rowsLeft() == 0 })
		if silent := r.Health().Silent; silent != 0 {
			t.Errorf("silent for %s", silent)
		}
		stop()
		publisher.Sink.Deliver(publisher.last)
		publisher.Sink.StateChanged(publish.State{Phase: publish.Ready})
		if n, called := len(got.Messages()), calls.count("any"); n != rows || called != rows {
			t.Errorf("%s: %d messages arrived, and hooks were called %d times, want %d", mode, n, called, rows)
		}
		if !strings.Contains(log.String(), "event=result_ignored") {
			t.Errorf("the log says:\n%s", log.String())
		}
	}
}

// An outage begins at the second result without an answer of one message, with no answer of another between. Steps are
// results: the number of a message and an outcome (u: unknown, n: not sent, l: no room, c: confirmed, r: rejected,
// i: impossible, h: impossible by the handler), or a state (R: ready, C: connecting).
func TestResultsWithoutAnAnswerAreAnOutage(t *testing.T) {
	for name, c := range map[string]struct {
		steps          string
		outage         bool
		ends, starts   int // events in the log
		ownMessageOnly bool
	}{
		"one message":                          {steps: "R 1u 1u", outage: true, starts: 1},
		"not sent":                             {steps: "R 1n 1n", outage: true, starts: 1},
		"in turn":                              {steps: "R 1n 1u", outage: true, starts: 1},
		"once":                                 {steps: "R 1u"},
		"no room":                              {steps: "R 1l 1l 1u 1l 1u"},
		"many once":                            {steps: "R 1u 2u 3u 4u"},
		"many twice":                           {steps: "R 1u 2u 3u 1u 2u 3u", outage: true, starts: 1},
		"one among confirmed messages":         {steps: "R 1u 2c 1u 3c 1u 4c 1u 1u 1u", ownMessageOnly: true},
		"one among rejected messages":          {steps: "R 1u 2r 1u 3r 1u 1u", ownMessageOnly: true},
		"one among messages impossible there":  {steps: "R 1u 2h 1u 3h 1u 1u", ownMessageOnly: true},
		"one among messages impossible here":   {steps: "R 1u 2i 1u 3i 1u", outage: true, starts: 1},
		"in turn with confirms of itself":      {steps: "R 1u 1c 2u 2c 3u 3c"},
		"two among confirmed messages":         {steps: "R 1u 2u 3c 1u 2u 4c 1u 2u", ownMessageOnly: true},
		"another beside the known one":         {steps: "R 1u 2c 1u 1u 3u 3u", outage: true, starts: 1, ownMessageOnly: true},
		"ended by a confirm":                   {steps: "R 1u 1u 1c", starts: 1, ends: 1},
		"ended by a rejection":                 {steps: "R 1u 1u 2r", starts: 1, ends: 1},
		"not ended by what the publisher says": {steps: "R 1u 1u 2i", outage: true, starts: 1},
		"hidden by the publisher's own report": {steps: "R 1u 1u C", starts: 1},
		"continued after a connection":         {steps: "R 1u 1u C R", outage: true, starts: 1},
		"ended after a connection":             {steps: "R 1u 1u C R 1c", starts: 1, ends: 1},
		"alternating":                          {steps: "R 1u 1u 1c 2u 2u 2c", starts: 2, ends: 2},
		"counted again after a connection":     {steps: "R 1u C R 1u"},
		"without a connection":                 {steps: "C 1u 1u 1n 1n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			var state publish.State
			u := newUnanswered(slog.New(slog.NewTextHandler(&log, nil)), time.Minute, func(s publish.State, _ bool) { state = s })
			for _, step := range strings.Fields(c.steps) {
				time.Sleep(2 * time.Second) // the log has at most one line a second
				switch step {
				case "R":
					u.stateChanged(publish.State{Phase: publish.Ready})
				case "C":
					u.stateChanged(publish.State{Phase: publish.Connecting})
				default:
					u.result(resultOf(step))
				}
			}
			u.mu.Lock() // the timer of a pause reports, too
			last := state
			u.mu.Unlock()
			if got := last.Phase == publish.Paused; got != c.outage {
				t.Errorf("%s: an outage: %v, state %+v", name, got, last)
			}
			if c.outage != strings.Contains(last.Detail, "no message was confirmed") {
				t.Errorf("%s: state %+v", name, last)
			}
			for what, want := range map[event.Name]int{event.PublisherFailing: c.starts, event.PublisherRecovered: c.ends} {
				if n := strings.Count(log.String(), string(what)); n != want {
					t.Errorf("%s: %d times %s, want %d:\n%s", name, n, what, want, &log)
				}
			}
			if got := strings.Contains(log.String(), string(event.MessageUnanswered)); got != c.ownMessageOnly {
				t.Errorf("%s: one message is named: %v:\n%s", name, got, &log)
			}
			u.stateChanged(publish.State{Phase: publish.Closed}) // no timer is left
		})
	}
}

func resultOf(step string) outbox.Result {
	r := outbox.Result{Message: &outbox.Message{Row: outbox.Row{ID: int64(step[0] - '0')}}, Detail: "HTTP 000"}
	switch step[1] {
	case 'u':
		r.Outcome = outbox.Unknown
	case 'n':
		r.Outcome = outbox.NotSent
	case 'l':
		r.Outcome, r.RetryIn = outbox.NotSent, time.Second
	case 'c':
		r.Outcome = outbox.Confirmed
	case 'r':
		r.Outcome, r.Reason = outbox.Rejected, outbox.ReasonHandlerRejected
	case 'i':
		r.Outcome, r.Reason = outbox.Impossible, outbox.ReasonInvalidRow
	case 'h':
		r.Outcome, r.Reason = outbox.Impossible, outbox.ReasonHandlerImpossible
	}
	return r
}

// Messages leave again after each pause. The pauses grow to ten seconds. The outage ends when no message is left.
func TestAnOutageWithoutReportsIsTriedAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var state publish.State
		takes, tries := false, 0
		u := newUnanswered(slog.New(slog.DiscardHandler), time.Minute, func(s publish.State, now bool) { state, takes = s, now })
		reported := func() (publish.State, bool) {
			u.mu.Lock()
			defer u.mu.Unlock()
			return state, takes
		}
		u.stateChanged(publish.State{Phase: publish.Ready})
		u.result(resultOf("1u"))
		for range 120 {
			if _, takes := reported(); takes {
				tries++
				u.result(resultOf("1u"))
			}
			if state, _ := reported(); state.Phase != publish.Paused {
				t.Fatalf("it counts as %s while a message is tried", state.Phase)
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if tries < 10 || tries > 20 {
			t.Errorf("%d tries in two minutes", tries)
		}
		time.Sleep(time.Minute + lastPause)
		synctest.Wait()
		if state, takes := reported(); state.Phase != publish.Ready || !takes {
			t.Errorf("nothing waits, and it is %+v", state)
		}
	})
}

// Each try of a message without an answer may be another copy. In an outage, the pauses of all messages are enough.
func TestAMessageThatAloneHasNoAnswerWaitsLongerEachTime(t *testing.T) {
	u := newUnanswered(slog.New(slog.DiscardHandler), time.Minute, func(publish.State, bool) {})
	u.stateChanged(publish.State{Phase: publish.Ready})
	waits := func(step string) time.Duration { return u.result(resultOf(step)).RetryIn }
	if wait := waits("1u"); wait != 0 {
		t.Errorf("at the first time it waits %s", wait)
	}
	waits("2c")
	for n, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		if wait := waits("1u"); wait != want*time.Second {
			t.Errorf("at time %d it waits %s, want %d s", n+2, wait, want)
		}
	}
	if waits("1c"); waits("1u") != 0 {
		t.Error("it was confirmed, and its next row waits")
	}
	if waits("3u"); waits("3u") != 0 {
		t.Error("a message waits in an outage")
	}
}

// It charges no attempt, and recovers by itself.
func TestAPublisherThatNeverAnswersIsAnOutage(t *testing.T) {
	i := newInstance(t)
	i.config.Mode = ModePoll
	i.load(2)
	var answers atomic.Bool
	publisher := outboxtest.NewPublisher(func(*outbox.Message) outbox.Result {
		if answers.Load() {
			return outbox.Result{}
		}
		return outbox.Result{Outcome: outbox.Unknown, Detail: "the target says nothing"}
	})
	var log bytes.Buffer
	r := i.new(publisher, slog.NewTextHandler(&log, nil), prometheus.NewRegistry())
	stop := i.run(r)
	i.await("the relay is not ready, and says why", func() bool {
		return slices.ContainsFunc(r.Health().Parts, func(p Part) bool {
			return p.Name == "publisher" && !p.Ready && strings.Contains(p.Detail, "the target says nothing")
		})
	})
	var attempts int
	if err := i.db.QueryRow(t.Context(), `SELECT sum(attempts) FROM outbox`).Scan(&attempts); err != nil || attempts != 0 {
		t.Errorf("%d attempts were charged, %v", attempts, err)
	}
	answers.Store(true)
	i.await("the messages leave and the relay is ready", func() bool { return i.rowsLeft() == 0 && r.Health().Ready })
	stop()
	for _, name := range []event.Name{event.PublisherFailing, event.PublisherRecovered} {
		if !strings.Contains(log.String(), "event="+string(name)) {
			t.Errorf("the log has no event %s:\n%s", name, &log)
		}
	}
}
