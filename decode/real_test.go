package decode_test

import (
	"context"
	"encoding/hex"
	"flag"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/decode"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/store"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

var update = flag.Bool("update", false, "write "+captured+" again")

func TestMain(m *testing.M) { services.Main(m) }

// difficultRows are rows that are easy to decode wrong. Rows that are readable from the table only by their key have
// one.
func difficultRows() []string {
	return []string{
		`(routing_key, payload) VALUES ('orders', '{"a": 1}')`,
		`(routing_key, payload) VALUES ('', ' { "a" :1,"a":2,` + "\n\t" + `"é": "\u0000 ü 🐘" } ')`,
		`(routing_key, payload) VALUES ('null', 'null')`,
		`(routing_key, payload) VALUES ('number', '  -0.10e+5')`,
		`(routing_key, payload) VALUES ('big', to_json(repeat('x', 300000)))`, // TOASTed
		`(routing_key, payload) SELECT 'random', to_json(string_agg(md5(i::text), '')) FROM generate_series(1, 4000) i`,
		`(routing_key, payload_bytes) VALUES ('empty', '')`,
		`(routing_key, payload_bytes) VALUES ('zero', '\x00')`,
		`(routing_key, payload_bytes) VALUES ('bytes', '\x01ff5c78007b7d')`,
		`(routing_key, payload_bytes) SELECT 'many', decode(string_agg(md5(i::text), ''), 'hex') FROM generate_series(1, 4000) i`,
		`(routing_key, payload, exchange) VALUES ('exchange', '1', '')`,
		`(routing_key, payload, exchange) VALUES ('ключ', '1', 'обмен "%s" \')`,
		`(routing_key, payload, headers, properties) VALUES ('h', '1', '{}', '{}')`,
		`(routing_key, payload, headers, properties) VALUES ('h', '1', '{"b": [1e400, null, 1.0, {"c": "ü\u0001"}], "": 9007199254740993}', '{"priority": 9, "type": "t"}')`,
		`(routing_key, payload, ordering_key) VALUES ('k', '1', '')`,
		`(routing_key, payload, ordering_key) VALUES ('k', '1', 'K' || repeat('é', 500))`,
		`(routing_key, payload, ordering_key, schema_version, attempts) VALUES ('new', '1', 'new', 32767, 2147483647)`,
		`(routing_key, payload, max_attempts) VALUES ('once', '1', 1), ('no limit', '1', 0), ('below', '1', -1)`,
		`(routing_key, payload, expires_at) VALUES ('e', '1', '9999-12-31 23:59:59.999999+00'), ('e', '1', 'infinity'), ('e', '1', '-infinity')`,
		`(routing_key, payload, ordering_key, possible_duplicate) VALUES ('d', '1', 'dup', true)`,
		`(routing_key, payload, possible_duplicate) VALUES ('d', '1', false)`,
		`(routing_key) VALUES ('neither payload')`,
		`(routing_key, payload, payload_bytes) VALUES ('both', 'null', '')`,
		`(routing_key, payload, exchange) VALUES (repeat('é', 128), '1', repeat('x', 300))`,
		`(routing_key, payload, headers, properties) VALUES ('kinds', '1', '[1]', 'null')`,
		`(routing_key, payload, schema_version, attempts) VALUES ('below', '1', 0, -1)`,
		`(routing_key, payload, created_at) VALUES ('micros', '1', '2026-07-01 12:34:56.000001+05:30')`,
		`(routing_key, payload, created_at) VALUES ('old', '1', '0001-01-01 00:00:00+00')`,
		`(routing_key, payload, created_at) VALUES ('far', '1', 'infinity'), ('past', '1', '-infinity')`,
		`(routing_key, payload, ordering_key, available_at) VALUES ('later', '1', 'later', '9999-12-31 23:59:59.999999+00')`,
		`(routing_key, payload, ordering_key, available_at) VALUES ('never', '1', 'never', 'infinity')`,
		`(routing_key, payload, ordering_key, available_at) VALUES ('always', '1', 'always', '-infinity')`,
		`(id, message_id, routing_key, payload) VALUES (-5, '00000000-0000-0000-0000-000000000000', 'id', '1')`,
		`(id, message_id, routing_key, payload) VALUES (9223372036854775806, 'ffffffff-ffff-ffff-ffff-ffffffffffff', 'id', '1')`,
	}
}

func TestStreamAndTableGiveEqualMessages(t *testing.T) {
	for _, options := range [][]string{nil, {"TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"}} {
		t.Run(strings.Join(options, " "), func(t *testing.T) {
			rows := difficultRows()
			if options != nil { // rows that the encoding cannot hold
				rows = slices.DeleteFunc(rows, func(s string) bool { return strings.ContainsAny(s, "🐘кл") })
			}
			equalMessages(t, services.Database(t, options...), rows)
		})
	}
}

func equalMessages(t *testing.T, url string, rows []string) {
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, _, err := migrations.Up(t.Context(), conn, table()); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, "SET client_encoding = 'UTF8'")
	exec(t, conn, "SET TimeZone = 'UTC'")
	stream := newReading(t, url)
	byText := stream.names.Slot + "_text"
	exec(t, conn, "SELECT pg_create_logical_replication_slot('"+byText+"', 'pgoutput')")

	for _, row := range rows {
		exec(t, conn, "INSERT INTO outbox "+row)
	}
	var count int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM outbox").Scan(&count); err != nil {
		t.Fatal(err)
	}
	want := fromTable(t, url)
	if len(want) != count-notClaimed {
		t.Fatalf("read %d rows from the table, want %d", len(want), count)
	}
	compare(t, "binary", stream.messages(t, count), want)
	raw := peek(t, conn, byText, stream.names.Publication, false)
	compare(t, "text", decodeAll(t, raw), want)
	if *update {
		raw = append(raw, peek(t, conn, byText, stream.names.Publication, true)...)
		writeSeeds(t, raw)
	}
}

func exec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// reading collects the rows of a stream.
type reading struct {
	names    replication.Source
	decoder  *decode.Decoder
	inserted chan *outbox.Message
	failed   chan error
}

func newReading(t *testing.T, url string) *reading {
	t.Helper()
	name := services.Name(t)
	r := &reading{
		names:   replication.Source{Table: table(), Publication: name, Slot: name},
		decoder: decode.NewDecoder(table()), inserted: make(chan *outbox.Message, 100), failed: make(chan error, 1),
	}
	stream, err := replication.Connect(t.Context(), pgdial.AddressOf(url, ""), r.names)
	if err != nil {
		t.Fatal(err)
	}
	names := provision.Names{Table: table(), Publication: name, Slot: name}
	if _, err := provision.Setup(t.Context(), stream.Conn(), names, time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.failed <- stream.Run(ctx, r)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		stream.Close()
	})
	return r
}

func (r *reading) WAL(data []byte) (pglogrepl.LSN, error) {
	event, err := r.decoder.Decode(data)
	if event.Kind == decode.Insert {
		r.inserted <- event.Message
	}
	return event.EndLSN, err
}

func (r *reading) Passed(pglogrepl.LSN) {}

func (r *reading) Alive(_, _ time.Time) {}
func (r *reading) Idle()                {}

func (r *reading) messages(t *testing.T, n int) []*outbox.Message {
	t.Helper()
	var got []*outbox.Message
	for len(got) < n {
		select {
		case m := <-r.inserted:
			if m.XID == 0 {
				t.Errorf("row %d has no XID", m.ID)
			}
			m.XID = 0
			got = append(got, m)
		case err := <-r.failed:
			t.Fatalf("after %d messages the stream ended: %v", len(got), err)
		case <-time.After(await.Hang()):
			t.Fatalf("after %d messages nothing came", len(got))
		}
	}
	return got
}

// peek reads a slot with SQL, in text form if asked.
func peek(t *testing.T, conn *pgx.Conn, slot, publication string, binary bool) [][]byte {
	t.Helper()
	rows, err := conn.Query(t.Context(), `SELECT data FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL,
		'proto_version', '1', 'publication_names', $2, 'binary', $3)`, slot, publication, map[bool]string{true: "true", false: "false"}[binary])
	if err != nil {
		t.Fatal(err)
	}
	messages, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		t.Fatal(err)
	}
	return messages
}

func decodeAll(t *testing.T, raw [][]byte) []*outbox.Message {
	t.Helper()
	d := decode.NewDecoder(table())
	var got []*outbox.Message
	for _, message := range raw {
		if event := feed(t, d, message); event.Kind == decode.Insert {
			event.Message.XID = 0
			got = append(got, event.Message)
		}
	}
	return got
}

// notClaimed counts the rows that wait for their time or for a newer relay.
const notClaimed = 3

func fromTable(t *testing.T, url string) map[int64]*outbox.Message {
	t.Helper()
	s, err := store.Open(pgdial.AddressOf(url, ""), store.Options{Table: table()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	var ids []int64
	if err := conn.QueryRow(t.Context(), `SELECT array_agg(id) FROM outbox`).Scan(&ids); err != nil {
		t.Fatal(err)
	}
	got := make(map[int64]*outbox.Message)
	claim, err := s.Lock(t.Context(), ids, outbox.AllFresh(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer claim.Abandon()
	for _, m := range claim.Messages {
		m.Deadline = nil // the publisher of a streamed row sets it
		got[m.ID] = m
	}
	return got
}

func compare(t *testing.T, form string, streamed []*outbox.Message, table map[int64]*outbox.Message) {
	t.Helper()
	streamed = slices.DeleteFunc(slices.Clone(streamed), func(m *outbox.Message) bool {
		return m.AvailableAt != nil && m.AvailableAt.After(time.Now()) || m.SchemaVersion > outbox.SchemaVersion // no claim brings it
	})
	if len(streamed) != len(table) {
		t.Errorf("%s: streamed %d rows, the table has %d", form, len(streamed), len(table))
	}
	for _, m := range streamed {
		if !reflect.DeepEqual(m, table[m.ID]) {
			t.Errorf("%s: row %q\nstream %+v\ntable  %+v", form, m.RoutingKey, m, table[m.ID])
		}
	}
}

func writeSeeds(t *testing.T, raw [][]byte) {
	t.Helper()
	var b strings.Builder
	for _, message := range raw {
		if len(message) < 4096 {
			b.WriteString(hex.EncodeToString(message) + "\n")
		}
	}
	if err := os.MkdirAll("testdata", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(captured, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
