package relay

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
