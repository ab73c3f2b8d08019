package decode_test

import (
	"encoding/hex"
	"flag"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/decode"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
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
			equalMessages(t, tabletest.New(t, options...), rows)
		})
	}
}

func equalMessages(t *testing.T, f *tabletest.Tables, rows []string) {
	f.Exec("SET client_encoding = 'UTF8'")
	f.Exec("SET TimeZone = 'UTC'")
	name := services.Name(t) // of slot and publication
	f.Exec("CREATE PUBLICATION " + name + " FOR TABLE outbox WITH (publish = 'insert')")
	f.Exec("SELECT pg_create_logical_replication_slot('" + name + "', 'pgoutput')")

	for _, row := range rows {
		f.Exec("INSERT INTO outbox " + row)
	}
	ids := f.IDs("true")
	want := fromTable(t, f.URL, ids)
	if len(want) != len(ids)-notClaimed {
		t.Fatalf("read %d rows from the table, want %d", len(want), len(ids)-notClaimed)
	}
	binary, text := peek(t, f.Conn, name, "true"), peek(t, f.Conn, name, "false")
	compare(t, "binary", decodeAll(t, binary), want)
	compare(t, "text", decodeAll(t, text), want)
	if *update {
		writeSeeds(t, append(text, binary...))
	}
}

// peek reads what the server would stream, in binary or text form.
func peek(t *testing.T, conn *pgx.Conn, name, binary string) [][]byte {
	t.Helper()
	rows, _ := conn.Query(t.Context(), `SELECT data FROM pg_logical_slot_peek_binary_changes($1::text, NULL, NULL,
		'proto_version', '1', 'publication_names', $1::text, 'binary', $2)`, name, binary)
	messages, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	services.Must(t, err)
	return messages
}

func decodeAll(t *testing.T, raw [][]byte) []*outbox.Message {
	t.Helper()
	d := decode.NewDecoder(table())
	var got []*outbox.Message
	for _, message := range raw {
		if event := feed(t, d, message); event.Kind == decode.Insert {
			if event.Message.XID == 0 {
				t.Errorf("row %d has no XID", event.Message.ID)
			}
			event.Message.XID = 0
			got = append(got, event.Message)
		}
	}
	return got
}

// notClaimed counts the rows that wait for their time or for a newer relay.
const notClaimed = 3

func fromTable(t *testing.T, url string, ids []int64) map[int64]*outbox.Message {
	t.Helper()
	s, err := store.Open(pgdial.AddressOf(url, ""), store.Options{Table: table()})
	services.Must(t, err)
	defer s.Close()
	got := make(map[int64]*outbox.Message)
	rows, _, err := s.ReadRows(t.Context(), ids, math.MaxInt64)
	services.Must(t, err)
	for _, m := range rows {
		m.Deadline = nil // the publisher of a streamed row sets it
		got[m.ID] = m
	}
	return got
}

func compare(t *testing.T, form string, streamed []*outbox.Message, table map[int64]*outbox.Message) {
	t.Helper()
	streamed = slices.DeleteFunc(slices.Clone(streamed), func(m *outbox.Message) bool {
		return m.AvailableAt != nil && m.AvailableAt.After(time.Now()) || m.SchemaVersion > outbox.SchemaVersion // no sweep reads it
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
	services.Must(t, os.MkdirAll("testdata", 0o755))
	services.Must(t, os.WriteFile(captured, []byte(b.String()), 0o644))
}
