package relay_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func emptyTable(t *testing.T, mode relay.Mode) (relay.Config, *pgx.Conn) {
	t.Helper()
	config := relay.DefaultConfig()
	config.DatabaseURL, config.Mode, config.PollInterval = tabletest.Database(t), mode, 20*time.Millisecond
	conn, err := pgx.Connect(t.Context(), config.DatabaseURL)
	services.Must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return config, conn
}

func runRelay(t *testing.T, config relay.Config, publisher publish.Publisher, log slog.Handler) (r *relay.Relay, end func()) {
	t.Helper()
	r, err := relay.New(config, publisher, slog.New(log), prometheus.NewRegistry())
	services.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return r, end
}

// The example's publisher fulfils the contract of publish.Publisher.
func TestACustomPublisherFulfilsTheContract(t *testing.T) {
	config, conn := emptyTable(t, relay.ModePoll)
	config.MaxRetries = 0
	for _, key := range []string{"a", "b", "never", "c"} {
		err := config.Table.Enqueue(t.Context(), conn, outbox.NewMessage{RoutingKey: key, OrderingKey: "k", Payload: key})
		services.Must(t, err)
	}
	arrived := make(chan string, 10)
	dead := make(chan relay.Event, 10)
	config.Hooks.DeadLettered = func(e relay.Event) { dead <- e }
	publisher := newFuncPublisher(config.MaxInFlight, func(m *outbox.Message) error {
		if m.RoutingKey == "never" {
			return errors.New("not this one")
		}
		arrived <- m.RoutingKey
		return nil
	})
	_, end := runRelay(t, config, publisher, slog.DiscardHandler)
	var got []string
	for range 3 {
		got = append(got, <-arrived)
	}
	if !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("arrived: %v", got)
	}
	if e := <-dead; e.RoutingKey != "never" || e.LastError != "rejected: not this one" {
		t.Errorf("dead letter: %+v", e)
	}
	end()
	var left int
	if err := conn.QueryRow(context.Background(), `SELECT count(*) FROM outbox`).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d rows are left, %v", left, err)
	}
}

// No publisher gets a row that nobody can publish, so none has to check for it.
func TestAPublisherGetsOnlyMessagesThatCanBePublished(t *testing.T) {
	for _, mode := range []relay.Mode{relay.ModePoll, relay.ModeAuto} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			publishesOnlyWhatCanBePublished(t, mode)
		})
	}
}

// custom is a relay with the example's publisher.
type custom struct {
	*testing.T
	conn    *pgx.Conn
	arrived chan string // the routing keys that the publisher has got
	dead    chan relay.Event
}

// startCustom starts a relay that streams (ModeAuto) or polls.
func startCustom(t *testing.T, mode relay.Mode) *custom {
	config, conn := emptyTable(t, mode)
	config.Slot, config.HeaderColumns = services.Name(t), []string{"tenant"}
	tabletest.Run(t, conn, "ALTER TABLE outbox ADD tenant text")
	i := &custom{T: t, conn: conn, arrived: make(chan string, 100), dead: make(chan relay.Event, 100)}
	config.Hooks.DeadLettered = func(e relay.Event) { i.dead <- e }
	publisher := newFuncPublisher(config.MaxInFlight, func(m *outbox.Message) error {
		i.arrived <- m.RoutingKey
		return nil
	})
	runRelay(t, config, publisher, slog.DiscardHandler)
	i.insert("routing_key, payload", "'first', '1'")
	<-i.arrived // a relay in ModeAuto streams what comes now
	return i
}

func (i *custom) insert(columns, values string) {
	i.Helper()
	if _, err := i.conn.Exec(i.Context(), "INSERT INTO outbox ("+columns+") VALUES ("+values+")"); err != nil {
		i.Fatalf("%s: %v", columns, err)
	}
}

// awaitDead waits until these messages, by routing key, are dead letters and fails if the publisher gets one.
func (i *custom) awaitDead(wanted map[string]outbox.Reason) {
	i.Helper()
	for len(wanted) > 0 {
		var e relay.Event
		select {
		case e = <-i.dead:
		case key := <-i.arrived:
			i.Fatalf("the publisher has got %q", key)
		case <-time.After(time.Minute):
			i.Fatalf("not all rows became dead letters: %v", wanted)
		}
		if e.Reason != wanted[e.RoutingKey] {
			i.Errorf("%q is a dead letter with reason %q, want %q", e.RoutingKey, e.Reason, wanted[e.RoutingKey])
		}
		delete(wanted, e.RoutingKey)
	}
}

func publishesOnlyWhatCanBePublished(t *testing.T, mode relay.Mode) {
	i := startCustom(t, mode)
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
		i.insert("routing_key, "+row.columns, outbox.QuoteLiteral(key)+", "+row.values)
		wanted[key] = row.reason
	}
	i.awaitDead(wanted)
	i.insert("routing_key, payload", "'last', '1'")
	if key := <-i.arrived; key != "last" {
		t.Errorf("the publisher has got %q", key)
	}
}

// A row with huge properties costs a few times the memory of its bytes at most.
func TestHugePropertiesCostLittleMemory(t *testing.T) {
	for _, mode := range []relay.Mode{relay.ModePoll, relay.ModeAuto} {
		t.Run(string(mode), func(t *testing.T) {
			i := startCustom(t, mode)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			i.insert("routing_key, payload, properties", `'huge', '1', ('{"a":[' || repeat('{},', 2000000) || '{}]}')::jsonb`)
			i.awaitDead(map[string]outbox.Reason{"huge": outbox.ReasonInvalidProperties})
			runtime.ReadMemStats(&after)
			const bytes = 8_000_000
			if took := after.TotalAlloc - before.TotalAlloc; took > 5*bytes {
				t.Errorf("%d bytes were allocated for properties of %d", took, bytes)
			}
		})
	}
}

// excessive is a publisher that delivers each result several times at once, and results for messages that it was not
// given.
type excessive struct {
	*funcPublisher
	publish.Sink
	last outbox.Result
}

func (p *excessive) Run(ctx context.Context, sink publish.Sink) error {
	p.Sink = sink
	return p.funcPublisher.Run(ctx, p)
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
	for _, mode := range []relay.Mode{relay.ModePoll, relay.ModeAuto} {
		config, conn := emptyTable(t, mode)
		config.Slot = services.Name(t)
		const rows = 50
		arrived, called := make(chan string, 2*rows), make(chan relay.Event, 100*rows)
		config.Hooks = relay.Hooks{Published: func(e relay.Event) { called <- e }, Rejected: func(e relay.Event) { called <- e }, DeadLettered: func(e relay.Event) { called <- e }}
		publisher := &excessive{funcPublisher: newFuncPublisher(config.MaxInFlight, func(m *outbox.Message) error {
			arrived <- m.RoutingKey
			return nil
		})}
		var log bytes.Buffer
		r, end := runRelay(t, config, publisher, slog.NewTextHandler(&log, nil))
		for i := range rows {
			message := outbox.NewMessage{RoutingKey: "k", Payload: i}
			if i%2 == 0 {
				message.OrderingKey = "k"
			}
			services.Must(t, config.Table.Enqueue(t.Context(), conn, message))
		}
		for range rows {
			<-arrived
		}
		await.Until(t, "the table is empty", func() (empty bool) {
			services.Must(t, conn.QueryRow(t.Context(), `SELECT NOT EXISTS (SELECT FROM outbox)`).Scan(&empty))
			return empty
		})
		if silent := r.Health().Silent; silent != 0 {
			t.Errorf("silent for %s", silent)
		}
		end()
		publisher.Sink.Deliver(publisher.last)
		publisher.Sink.StateChanged(publish.State{Phase: publish.Ready})
		if len(arrived) != 0 || len(called) != rows {
			t.Errorf("%s: %d messages more than %d arrived, hooks were called %d times", mode, len(arrived), rows, len(called))
		}
		if !strings.Contains(log.String(), "event=result_ignored") {
			t.Errorf("the log says:\n%s", log.String())
		}
	}
}
