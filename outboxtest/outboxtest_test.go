package outboxtest_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/outboxtest"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

func database(t *testing.T, tables ...outbox.Table) (url string, conn *pgx.Conn) {
	t.Helper()
	url = services.Database(t)
	conn = tabletest.Connect(t, url)
	for _, table := range tables {
		_, _, err := migrations.Up(t.Context(), conn, table)
		must(t, err)
	}
	return url, conn
}

func messages() []outbox.NewMessage {
	return []outbox.NewMessage{
		{RoutingKey: "a", Payload: json.RawMessage(` { "b":1, "a": 2 } `), MessageID: outbox.UUID{1}},
		{RoutingKey: "b", Body: []byte{}, Exchange: new(""), MessageID: outbox.UUID{2}},
		{
			RoutingKey: "c", OrderingKey: "k", Payload: nullPayload, MessageID: outbox.UUID{3}, MaxAttempts: new(0), CoalesceKey: "c",
			Headers: map[string]any{"n": 1}, Properties: map[string]any{"type": "t"}, RedactedPayload: "hidden",
			NotBefore: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), ExpiresAt: time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC),
		},
	}
}

var nullPayload = json.RawMessage("null")

func want() []outboxtest.Message {
	return []outboxtest.Message{
		{RoutingKey: "a", Payload: json.RawMessage(` { "b":1, "a": 2 } `), MessageID: outbox.UUID{1}},
		{RoutingKey: "b", Body: []byte{}, Exchange: new(""), MessageID: outbox.UUID{2}},
		{
			RoutingKey: "c", OrderingKey: "k", Payload: nullPayload, MessageID: outbox.UUID{3}, MaxAttempts: new(0), CoalesceKey: "c",
			Headers: map[string]any{"n": 1.0}, Properties: map[string]any{"type": "t"}, RedactedPayload: json.RawMessage(`"hidden"`),
			NotBefore: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), ExpiresAt: time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC),
		},
	}
}

func wantMessages(t *testing.T, got []outboxtest.Message) {
	t.Helper()
	for i := range got {
		got[i].NotBefore, got[i].ExpiresAt = got[i].NotBefore.UTC(), got[i].ExpiresAt.UTC()
	}
	if !reflect.DeepEqual(got, want()) {
		t.Errorf("got  %+v\nwant %+v", got, want())
	}
}

func TestRecorder(t *testing.T) {
	table := outbox.Table{Schema: "sales", Name: "It's"}
	var tx outboxtest.Recorder
	if _, err := tx.Exec(t.Context(), "INSERT INTO orders (id) VALUES ($1)", 42); err != nil {
		t.Fatal(err)
	}
	must(t, table.Enqueue(t.Context(), &tx, messages()[:2]...))
	must(t, table.EnqueueSQL(t.Context(), &tx, messages()[2]))
	wantMessages(t, tx.Messages())
	if err := table.Enqueue(t.Context(), &tx, outbox.NewMessage{RoutingKey: "k", Payload: []byte("{")}); err == nil || !strings.Contains(err.Error(), "payload: ") {
		t.Errorf("an invalid payload: %v", err)
	}
	failing := outboxtest.Recorder{Err: errors.New("connection lost")}
	if err := table.Enqueue(t.Context(), &failing, messages()...); !errors.Is(err, failing.Err) || len(failing.Messages()) > 0 {
		t.Errorf("%v, %v", err, failing.Messages())
	}
}

// Enqueued returns the rows of the transaction and its savepoints, and no rows of others.
func TestEnqueued(t *testing.T) {
	table := outbox.Table{Schema: "public", Name: "outbox"}
	other := outbox.Table{Schema: "My Schema", Name: "Out.Box"}
	url, conn := database(t, table, other)
	before := outbox.NewMessage{RoutingKey: "before", Payload: 1}
	must(t, table.Enqueue(t.Context(), conn, before))
	tx, err := conn.Begin(t.Context())
	must(t, err)
	if got := outboxtest.Enqueued(t, tx); len(got) > 0 {
		t.Errorf("before the first: %+v", got)
	}
	during := tabletest.Connect(t, url)
	enqueue := func(tx outbox.PgxExecer, m outbox.NewMessage) { must(t, table.Enqueue(t.Context(), tx, m)) }
	enqueue(tx, messages()[0])
	enqueue(during, outbox.NewMessage{RoutingKey: "during", Payload: 1}) // its id is between those of the transaction and its savepoints
	for _, rolledBack := range []bool{false, true} {
		savepoint, err := tx.Begin(t.Context())
		must(t, err)
		if rolledBack {
			enqueue(savepoint, before)
			err = savepoint.Rollback(t.Context())
		} else {
			enqueue(savepoint, messages()[1])
			err = savepoint.Commit(t.Context())
		}
		must(t, err)
	}
	enqueue(during, outbox.NewMessage{RoutingKey: "during", Payload: 1})
	enqueue(tx, messages()[2])
	wantMessages(t, outboxtest.Enqueued(t, tx))
	if got := outboxtest.Enqueued(t, tx, other); len(got) > 0 {
		t.Errorf("the other table has %+v", got)
	}
	must(t, other.Enqueue(t.Context(), tx, messages()...))
	wantMessages(t, outboxtest.Enqueued(t, tx, other))
	must(t, tx.Rollback(t.Context()))

	db, err := sql.Open("pgx", url)
	must(t, err)
	defer db.Close()
	sqlTx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	defer sqlTx.Rollback()
	must(t, table.EnqueueSQL(t.Context(), sqlTx, messages()...))
	wantMessages(t, outboxtest.EnqueuedSQL(t, sqlTx))
}

// The relay works with the Publisher as with a broker: rejected messages are retried, invalid ones become dead letters.
func TestPublisher(t *testing.T) {
	config := relay.DefaultConfig()
	_, conn := database(t, config.Table)
	config.DatabaseURL, config.Mode, config.MaxRetries = conn.Config().ConnString(), relay.ModePoll, 0
	for _, m := range []outbox.NewMessage{
		{RoutingKey: "a", OrderingKey: "k", Payload: 1},
		{RoutingKey: "no", OrderingKey: "k", Payload: 2},
		{RoutingKey: "b", OrderingKey: "k", Payload: 3},
		{RoutingKey: "late", Payload: 4, ExpiresAt: time.Unix(0, 0)},
	} {
		must(t, config.Table.Enqueue(t.Context(), conn, m))
	}
	if _, err := conn.Exec(t.Context(), `INSERT INTO outbox (routing_key) VALUES ('empty')`); err != nil {
		t.Fatal(err)
	}
	publisher := outboxtest.NewPublisher(func(m *outbox.Message) outbox.Result {
		if m.RoutingKey == "no" {
			return outbox.Result{Outcome: outbox.Rejected, Reason: outbox.ReasonUnroutable}
		}
		return outbox.Result{}
	})
	r, err := relay.New(config, publisher, slog.New(slog.NewTextHandler(t.Output(), nil)), prometheus.NewRegistry())
	must(t, err)
	must(t, r.Drain(t.Context()))
	var got []string
	for _, m := range publisher.Messages() {
		got = append(got, m.RoutingKey+"="+string(m.Payload))
	}
	if strings.Join(got, " ") != "a=1 no=2 b=3" {
		t.Errorf("got %v", got)
	}
	var dead string
	err = conn.QueryRow(t.Context(), `SELECT string_agg(routing_key || ' ' || failure_reason, ', ' ORDER BY id) FROM outbox_dead_letter`).Scan(&dead)
	if err != nil || dead != "no retries_exhausted, late expired, empty invalid_row" {
		t.Errorf("dead letters: %s, %v", dead, err)
	}
}
