package store_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// A sweep does not read a column that is over its limit, and its size is not underestimated.
func TestSweepsReadNoColumnOverItsLimit(t *testing.T) {
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
	found, err := f.store.FindNewest(t.Context(), 0, math.MaxInt64, 100)
	if err != nil || len(found) != len(cases) {
		t.Fatalf("found %d of %d rows, %v", len(found), len(cases), err)
	}
	for i, c := range cases {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		m := f.sweep(found[i].ID)[0]
		runtime.ReadMemStats(&after)
		f.settle(deleted(m))
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

// One row that the server cannot send delays no other of its statement, and is named.
func TestARowThatTheServerCannotSendDelaysNoOther(t *testing.T) {
	// In WIN1252 this character is undefined, so UTF-8 has none for it.
	f := newFixture(t, "TEMPLATE template0 ENCODING 'WIN1252' LC_COLLATE 'C' LC_CTYPE 'C'")
	f.Exec(`ALTER TABLE outbox ADD tenant text`)
	f.store = open(t, f.URL, store.Options{Table: tabletest.Name(), HeaderColumns: []string{"tenant"}})
	f.Exec(`INSERT INTO outbox (routing_key, payload, exchange, tenant, ordering_key, expires_at) VALUES
		('a', '1', NULL, 't', 'k', 'infinity'), (chr(129), '2', NULL, 't', 'k', NULL), ('c', '3', chr(129), 't', NULL, NULL),
		('d', to_json(chr(129)), NULL, 't', NULL, NULL), ('e', '5', NULL, chr(129), NULL, NULL), ('f', '6', NULL, 't', NULL, 'infinity')`)
	f.Exec(`INSERT INTO outbox (routing_key, payload, headers) VALUES ('g', '7', jsonb_build_object('a', chr(129)))`)
	in := outbox.Range{UpTo: math.MaxInt64, Rows: 10, Bytes: 1 << 20}
	for want := range 5 {
		p, err := f.store.ReadRange(t.Context(), in)
		rows := p.Messages
		if err != nil || len(rows) == 0 || rows[0].ID != int64(want+3) || (rows[0].Unreadable == "") != (want == 3) {
			t.Fatalf("a range from row %d: %v, %v", in.From, idsOf(rows), err)
		}
		in.From = rows[0].ID + 1
	}
	readable := map[int64]string{1: "1", 6: "6"}
	for left := f.IDs("true"); len(left) > 0; left = f.IDs("true") {
		var rows []outbox.Settlement
		for _, m := range f.sweep(left...) {
			payload, ok := readable[m.ID]
			if string(m.Payload) != payload || (m.Unreadable == "") != ok || (ok && m.Deadline == nil) || (m.OrderingKey != nil) != (m.ID <= 2) {
				t.Errorf("row %d: %+v", m.ID, m)
			}
			if ok {
				rows = append(rows, deleted(m))
			} else if rows = append(rows, dead(m, false)); !strings.Contains(m.Unreadable, "0x81") {
				t.Errorf("row %d is unreadable because of %q", m.ID, m.Unreadable)
			}
		}
		if f.settle(rows...); len(rows) == 0 {
			t.Fatalf("nothing is read of %d rows", len(left))
		}
	}
	if left := f.Lines(`SELECT count(*)::text FROM outbox UNION ALL SELECT count(*)::text FROM outbox_dead_letter`); left != "0\n5" {
		t.Errorf("rows and dead letters: %q", left)
	}
}

// Nobody can read large values while their index is rebuilt, so a search that needs none of them ends.
func TestASearchReadsNoLargeValue(t *testing.T) {
	f := newFixture(t)
	f.Exec(`INSERT INTO outbox (routing_key, payload, payload_bytes, headers, properties, redacted_payload, last_error, exchange, ordering_key, available_at, coalesce_key)
		SELECT repeat('k', 1000000), CASE WHEN i % 3 > 0 THEN to_json(repeat('p', 3000000)) END, CASE WHEN i % 3 = 0 THEN decode(repeat('ab', 1000000), 'hex') END,
		       jsonb_build_object('a', repeat('h', 1000000)), jsonb_build_object('a', repeat('h', 1000000)), to_json(repeat('r', 3000000)), repeat('e', 1000000), repeat('x', 1000000),
		       CASE WHEN i > 6 THEN 'k' || i % 2 END, CASE WHEN i % 2 = 0 THEN now() END, 'c' FROM generate_series(1, 12) i`)
	rebuild, err := pgx.Connect(t.Context(), f.URL)
	must(t, err)
	defer func() { _ = rebuild.Close(context.Background()) }()
	var index string
	must(t, rebuild.QueryRow(t.Context(), `SELECT indexrelid::regclass::text FROM pg_index JOIN pg_class c ON c.reltoastrelid = indrelid
		WHERE c.oid = 'outbox'::regclass`).Scan(&index))
	tabletest.Run(t, rebuild, `BEGIN; REINDEX INDEX `+index)
	due, _, failedDue := f.store.FindDue(t.Context(), nil, nil, 100)
	backlog, failedBacklog := f.store.FindNewest(t.Context(), 0, math.MaxInt64, 100)
	keys, _, failedKeys := f.store.FindKeys(t.Context(), nil, 100, 10, math.MaxInt64)
	runs, _, failedRuns := f.store.FindRuns(t.Context(), []string{"k0", "k1"}, 10, math.MaxInt64)
	if err := errors.Join(failedDue, failedBacklog, failedKeys, failedRuns); err != nil || len(due) != 6 || len(backlog) != 6 || len(keys) != 2 || len(runs) != 2 {
		t.Fatalf("found %d due rows, %d fresh ones, %d and %d keys: %v", len(due), len(backlog), len(keys), len(runs), err)
	}
}

// A body that is stored in a hundredth of its size must not make a sweep read a hundred times as much.
func TestASweepReadsCompressedColumnsWithinItsBudget(t *testing.T) {
	for column, value := range map[string]string{
		"payload": `to_json(repeat('p', 1000000))`,
		"headers": `jsonb_build_object('h', repeat('h', 1000000))`,
		"lz4":     `to_json(repeat('p', 1000000))`,
	} {
		t.Run(column, func(t *testing.T) {
			f := newFixture(t)
			if column == "lz4" {
				column = "payload"
				if f.Lines(`SELECT 1 FROM pg_config WHERE setting LIKE '%with-lz4%'`) == "" {
					t.Skip("this server has no lz4")
				}
				f.Exec(`ALTER TABLE outbox ALTER payload SET COMPRESSION lz4`)
			}
			f.Exec(`INSERT INTO outbox (routing_key, ` + column + `) SELECT 'r', ` + value + ` FROM generate_series(1, 40)`)
			in := outbox.Range{UpTo: math.MaxInt64, Rows: 40, Bytes: 4 << 20}
			if p, err := f.store.ReadRange(t.Context(), in); err != nil || p.UpTo != int64(len(p.Messages)) || len(p.Messages) > 6 {
				t.Fatalf("%d rows of a range are read, %v", len(p.Messages), err)
			}
			for sweeps := 0; ; sweeps++ {
				left := f.IDs("true")
				if len(left) == 0 {
					if sweeps < 4 || sweeps > 8 {
						t.Errorf("%d sweeps have read 40 MB", sweeps)
					}
					return
				}
				bytes, rows := 0, f.sweep(left...)
				for _, m := range rows {
					bytes += m.Size()
					f.settle(deleted(m))
				}
				if len(rows) == 0 || rows[0].ID != left[0] || bytes > 10<<20 {
					t.Fatalf("%d rows of %d bytes are read, not the oldest row", len(rows), bytes)
				}
			}
		})
	}
}

// A large body is read alone, and no row behind it in the same statement.
func TestTheBodyOfALargeRowIsLeftAside(t *testing.T) {
	f := newFixture(t)
	text, binary := strings.Repeat("é1", 9<<20), make([]byte, 27<<20+1)
	for i := range binary {
		binary[i] = byte(i / 1000)
	}
	f.Plain(1)
	f.Exec(`INSERT INTO outbox (routing_key, payload, headers, expires_at) VALUES ('r', to_json($1::text), '{"a": 1}', now() + interval '1 h')`, text)
	f.Exec(`INSERT INTO outbox (routing_key, payload_bytes) VALUES ('r', $1)`, binary)
	f.Plain(1)
	in := outbox.Range{UpTo: math.MaxInt64, Rows: 10, Bytes: 8 << 20}
	p, err := f.store.ReadRange(t.Context(), in)
	rows := p.Messages
	if equal(t, "read", idsOf(rows), []int64{1, 2}); err != nil || p.UpTo != 2 || rows[0].Unread != 0 || rows[1].Unread < 27<<20 || rows[1].Payload != nil {
		t.Fatalf("read up to %d, %v", p.UpTo, err)
	}
	for id, body := range map[int64][]byte{2: []byte(`"` + text + `"`), 3: binary} {
		bare := f.sweep(id)[0]
		if bare.Payload != nil || bare.Unread < len(body) || (bare.Deadline != nil) != (id == 2) {
			t.Fatalf("row %d: %d bytes are not read", id, bare.Unread)
		}
		read := func(most int) (m *outbox.Message, allocated int) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			m, err := f.store.ReadBody(t.Context(), bare, most)
			runtime.ReadMemStats(&after)
			must(t, err)
			return m, int(after.TotalAlloc - before.TotalAlloc)
		}
		m, allocated := read(0)
		if !bytes.Equal(m.Payload, body) || m.Unread != 0 || m.Binary != (id == 3) || m.BothPayloads || m.RoutingKey != "r" {
			t.Errorf("row %d: read %d bytes of %+v", id, len(m.Payload), m.Row.ID)
		}
		if allocated > len(body)*5/2 { // with -race, pools lose some of the pieces
			t.Errorf("row %d: %d bytes were allocated for a body of %d", id, allocated, len(body))
		}
		// One that RabbitMQ does not accept is not read, and becomes a dead letter at once.
		m, allocated = read(len(body) - 1)
		if reason, detail := m.Defect(time.Now()); reason != outbox.ReasonTooLarge || allocated > 1<<20 {
			t.Errorf("row %d, which is too large: %s %s, %d bytes were allocated", id, reason, detail, allocated)
		}
		f.settle(dead(m, false))
		f.Exec(`INSERT INTO outbox (id, routing_key, payload) OVERRIDING SYSTEM VALUE VALUES ($1, 'r', '1')`, id)
		if gone, _ := read(0); gone != nil {
			t.Errorf("the body of another row with id %d is read", id)
		}
	}
}
