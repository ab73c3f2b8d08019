package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestMain(m *testing.M) { services.Main(m) }

// newOutbox returns the owner's connection, and the URL of a role that may only INSERT.
func newOutbox(t *testing.T, table outbox.Table) (*tabletest.Tables, string) {
	t.Helper()
	url := services.Database(t)
	f := &tabletest.Tables{TB: t, URL: url, Conn: tabletest.Connect(t, url)}
	_, _, err := migrations.Up(t.Context(), f.Conn, table)
	services.Must(t, err)
	role, address := f.Role("")
	f.Exec("GRANT USAGE ON SCHEMA " + outbox.QuoteIdentifier(table.Schema) + " TO " + role)
	f.Exec("GRANT INSERT ON " + table.SQL() + " TO " + role)
	return f, address
}

func messages() []outbox.NewMessage {
	exchange := "orders"
	return []outbox.NewMessage{
		{RoutingKey: "a", Payload: json.RawMessage(`{ "b":1, "a": 2 }`)},
		{RoutingKey: "b", Body: []byte{}},
		{
			MessageID: outbox.UUID{0: 1, 15: 2}, Exchange: &exchange, RoutingKey: "c", OrderingKey: "customer 7",
			Payload: map[string]int{"order_id": 42}, Headers: map[string]any{"traceparent": "00-x"},
			Properties: map[string]any{"priority": 3}, RedactedPayload: "hidden",
			NotBefore:   time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC),
			MaxAttempts: new(0), ExpiresAt: time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC), CoalesceKey: "stock 7",
		},
	}
}

const wantRows = `a  - - { "b":1, "a": 2 } - - - - - - -
b  - - - \x - - - - - -
c orders customer 7 2030-01-02 03:04:05+00 {"order_id":42} - {"traceparent": "00-x"} {"priority": 3} "hidden" 0 2031-01-02 03:04:05+00 stock 7 01000000-0000-0000-0000-000000000002`

func rowsOf(f *tabletest.Tables, table outbox.Table) string {
	return f.Lines(`SELECT concat_ws(' ', routing_key, coalesce(exchange, ''), coalesce(ordering_key, '-'),
		coalesce((available_at AT TIME ZONE 'UTC')::text || '+00', '-'), coalesce(payload::text, '-'), coalesce(payload_bytes::text, '-'),
		coalesce(headers::text, '-'), coalesce(properties::text, '-'), coalesce(redacted_payload::text, '-'),
		coalesce(max_attempts::text, '-'), coalesce((expires_at AT TIME ZONE 'UTC')::text || '+00', '-'), coalesce(coalesce_key, '-'),
		CASE WHEN message_id::text LIKE '01000000%' THEN message_id::text END) FROM ` + table.SQL() + " ORDER BY id")
}

func TestEnqueueWithPgxNeedsOnlyInsert(t *testing.T) {
	table := outbox.Table{Schema: "My Schema", Name: "Out.Box"}
	owner, url := newOutbox(t, table)
	app := tabletest.Connect(t, url)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		app.Config().DefaultQueryExecMode = mode
		err := pgx.BeginFunc(t.Context(), app, func(tx pgx.Tx) error {
			return table.Enqueue(t.Context(), tx, messages()...)
		})
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		if got := rowsOf(owner, table); got != wantRows {
			t.Errorf("%s: got\n%s\nwant\n%s", mode, got, wantRows)
		}
		owner.Exec("DELETE FROM " + table.SQL())
	}
}

func TestEnqueueRejectsInvalidMessages(t *testing.T) {
	table := outbox.Table{Schema: "public", Name: "outbox"}
	_, url := newOutbox(t, table)
	app := tabletest.Connect(t, url)
	long := strings.Repeat("é", 128)
	for _, test := range []struct {
		message outbox.NewMessage
		want    string
	}{
		{outbox.NewMessage{RoutingKey: "k"}, "set Payload or Body"},
		{outbox.NewMessage{RoutingKey: "k", Payload: 1, Body: []byte{1}}, "set Payload or Body"},
		{outbox.NewMessage{RoutingKey: "k", Payload: func() {}}, "marshal Payload"},
		{outbox.NewMessage{RoutingKey: "k", Payload: 1, Headers: map[string]any{"a": func() {}}}, "marshal Headers"},
		{outbox.NewMessage{RoutingKey: "k", Payload: []byte("{")}, "invalid input syntax for type json"},
		{outbox.NewMessage{RoutingKey: strings.Repeat("k", 256), Payload: 1}, "routing key has 256 bytes, must have at most 255"},
		{outbox.NewMessage{RoutingKey: "k", Exchange: &long, Payload: 1}, "exchange has 256 bytes, must have at most 255"},
		{outbox.NewMessage{RoutingKey: "k", Payload: 1, MaxAttempts: new(-1)}, "max attempts is -1, must be from 0 (no limit) to 32767"},
		{outbox.NewMessage{RoutingKey: "k", Payload: 1, MaxAttempts: new(32768)}, "max attempts is 32768"},
		{outbox.NewMessage{RoutingKey: "k", OrderingKey: strings.Repeat("k", 2685), Payload: 1}, "outbox_ordering_key_idx"},
	} {
		err := table.Enqueue(t.Context(), app, test.message)
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "enqueue message") {
			t.Errorf("got %v, want %q", err, test.want)
		}
	}
}

func TestNewMessageID(t *testing.T) {
	a, b := outbox.NewMessageID(), outbox.NewMessageID()
	if a == b || a.String()[14] != '4' || !strings.ContainsRune("89ab", rune(a.String()[19])) {
		t.Errorf("%s, %s: not two random UUIDs", a, b)
	}
}

func ExampleTable_InsertSQL() {
	table := outbox.Table{Schema: "public", Name: "outbox"}
	statement, _, _ := strings.Cut(table.InsertSQL(), " (")
	fmt.Println(statement)
	// Output: INSERT INTO "public"."outbox"
}

// An order and its message commit together, or neither does.
func ExampleTable_Enqueue() {
	table := outbox.Table{Schema: "public", Name: "outbox"}
	placeOrder := func(ctx context.Context, conn *pgx.Conn, orderID int) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO orders (id) VALUES ($1)", orderID); err != nil {
				return err
			}
			return table.Enqueue(ctx, tx, outbox.NewMessage{
				RoutingKey: "orders.created",
				Payload:    map[string]int{"order_id": orderID},
			})
		})
	}
	_ = placeOrder
}
