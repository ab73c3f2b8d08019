package store_test

import (
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// A claim does not read a column that is over its limit, and its size is not underestimated.
func TestClaimsReadNoColumnOverItsLimit(t *testing.T) {
	f := newFixture(t)
	f.Exec(`ALTER TABLE outbox ADD tenant text, ADD number int`)
	f.store = open(t, f.URL, store.Options{Table: tabletest.Name(), HeaderColumns: []string{"tenant", "number"}})
	objects := func(n string) string {
		return `(SELECT jsonb_build_object('a', jsonb_agg('{}'::jsonb)) FROM generate_series(1, ` + n + `))`
	}
	numbers := func(number, n string) string {
		return `('{"a":[' || repeat('` + number + `,', ` + n + `) || '1]}')::jsonb`
	}
	random := `(SELECT jsonb_object_agg(gen_random_uuid()::text, gen_random_uuid()::text) FROM generate_series(1, 16000))`
	cases := []struct{ column, value, over string }{
		{"headers", objects("300000"), "headers"},
		{"properties", objects("300000"), "properties"},
		{"properties", random, "properties"}, // it cannot be compressed
		{"headers", numbers("1e131071", "8"), "headers"},
		{"headers", numbers("1e131071", "9000"), "headers"}, // its text has more than 1 GB
		{"headers", `(repeat('[', 2000) || '1e131071' || repeat(']', 2000))::jsonb`, "headers"},
		{"properties", numbers("1e-16383", "70"), "properties"},
		{"properties", `jsonb_build_object(repeat('b', 1048577), 1)`, "properties"},
		{"headers", `jsonb_build_object('b', repeat(chr(1), 200000))`, "headers"}, // \u0001 in JSON
		{"headers", `to_jsonb(repeat('b', 1048577))`, "headers"},
		{"headers", `(repeat('[', 3000) || repeat(' ', 1048577) || repeat(']', 3000))::jsonb`, ""}, // jsonb drops spaces
		{"routing_key", `repeat('k', 1048577)`, "routing_key"},
		{"exchange", `repeat('ü', 524289)`, "exchange"},
		{"tenant", `repeat('t', 4000000)`, "tenant"},
		{"tenant", `repeat('t', 1048576)`, ""},
		{"number", `-2147483648`, ""},
		{"headers", numbers("1e131071", "1"), ""},
		{"headers", numbers("-1e131071", "7"), "headers"},
		{"headers", `(SELECT jsonb_build_object('a', jsonb_agg(round(1, 16383))) FROM generate_series(1, 100))`, "headers"},
		{"headers", numbers("1e300", "20"), ""},
		{"headers", numbers("1e-320", "100"), ""},
		{"headers", `jsonb_build_object('b', repeat('b', 1048000))`, ""},
		{"properties", `'null'`, ""},
		{"last_error", `repeat('e', 4000000)`, ""},
		{"redacted_payload", `to_json(repeat('r', 4000000))`, ""},
		{"payload", `to_json(repeat('p', 2000000))`, ""},
	}
	for _, c := range cases {
		columns, values := "routing_key", "'r'"
		if c.column == columns {
			columns, values = "", ""
		}
		f.Exec(`INSERT INTO outbox (` + strings.TrimPrefix(columns+", "+c.column, ", ") + `) VALUES (` + strings.TrimPrefix(values+", "+c.value, ", ") + `)`)
	}
	found, err := f.store.FindBacklog(t.Context(), 0, math.MaxInt64, 100, outbox.AllFresh())
	if err != nil || len(found) != len(cases) {
		t.Fatalf("found %d of %d rows, %v", len(found), len(cases), err)
	}
	for i, c := range cases {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		claim := f.claim(outbox.AllFresh(), found[i].ID)
		runtime.ReadMemStats(&after)
		m := claim.Messages[0]
		f.commit(claim, deleted(m))
		if m.Oversize != c.over {
			t.Errorf("%s %.70s: over its limit is %q, want %q", c.column, c.value, m.Oversize, c.over)
		}
		// Half a row more than the values: pgx reads a message into a buffer of twice the size.
		if read := after.TotalAlloc - before.TotalAlloc; read > uint64(3*m.Size()+4<<20) {
			t.Errorf("%s %.70s: %d bytes were allocated for a message of %d", c.column, c.value, read, m.Size())
		}
		if c.over == "" && found[i].Size < m.Size()/6 && m.Size() < 100_000 {
			t.Errorf("%s %.70s: the size was estimated as %d, it is %d", c.column, c.value, found[i].Size, m.Size())
		}
	}
}

// One row that the server cannot send delays no other of its claim, and is named.
func TestARowThatTheServerCannotSendDelaysNoOther(t *testing.T) {
	// In WIN1252 this character is undefined, so UTF-8 has none for it.
	f := newFixture(t, "TEMPLATE template0 ENCODING 'WIN1252' LC_COLLATE 'C' LC_CTYPE 'C'")
	f.Exec(`ALTER TABLE outbox ADD tenant text`)
	f.store = open(t, f.URL, store.Options{Table: tabletest.Name(), HeaderColumns: []string{"tenant"}})
	f.Exec(`INSERT INTO outbox (routing_key, payload, exchange, tenant, ordering_key, expires_at) VALUES
		('a', '1', NULL, 't', 'k', 'infinity'), (chr(129), '2', NULL, 't', 'k', NULL), ('c', '3', chr(129), 't', NULL, NULL),
		('d', to_json(chr(129)), NULL, 't', NULL, NULL), ('e', '5', NULL, chr(129), NULL, NULL), ('f', '6', NULL, 't', NULL, 'infinity')`)
	f.Exec(`INSERT INTO outbox (routing_key, payload, headers) VALUES ('g', '7', jsonb_build_object('a', chr(129)))`)
	readable := map[int64]string{1: "1", 6: "6"}
	for range 2 { // the second claim knows the rows
		claim := f.claim(outbox.AllFresh(), f.IDs("true")...)
		if len(claim.Messages) != 7 {
			t.Fatalf("%d rows are locked", len(claim.Messages))
		}
		for _, m := range claim.Messages {
			payload, ok := readable[m.ID]
			if string(m.Payload) != payload || (m.Unreadable == "") != ok || (ok && m.Deadline == nil) || (m.OrderingKey != nil) != (m.ID <= 2) {
				t.Errorf("row %d: %+v", m.ID, m)
			}
			if !ok && !strings.Contains(m.Unreadable, "0x81") {
				t.Errorf("row %d is unreadable because of %q", m.ID, m.Unreadable)
			}
		}
		claim.Abandon()
	}
	claim := f.claim(outbox.AllFresh(), f.IDs("true")...)
	var rows []outbox.Settlement
	for _, m := range claim.Messages {
		if m.Unreadable == "" {
			rows = append(rows, deleted(m))
		} else {
			rows = append(rows, dead(m, false))
		}
	}
	f.commit(claim, rows...)
	if left := f.Lines(`SELECT count(*)::text FROM outbox UNION ALL SELECT count(*)::text FROM outbox_dead_letter`); left != "0\n5" {
		t.Errorf("rows and dead letters: %q", left)
	}
}
