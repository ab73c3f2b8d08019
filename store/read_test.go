package store_test

import "testing"

func TestPayloadIsReadByteForByte(t *testing.T) {
	f := newFixture(t)
	for _, json := range []string{` {"b" : 1, "a":2,` + "\t\n" + ` "b":3 } `, `null`, `""`, ` 1.10e+2`, `"\u0000"`, `{"é":"ü🐘"}`} {
		f.Insert(`(routing_key, payload) VALUES ($1, $1::text::json)`, json)
	}
	for _, m := range f.takeAll() {
		if m.Binary || string(m.Payload) != m.RoutingKey {
			t.Errorf("%q: %q", m.RoutingKey, m.Payload)
		}
	}
}

func TestNullAndEmptyValuesAreDistinguished(t *testing.T) {
	f := newFixture(t)
	f.Insert(`(routing_key, payload_bytes, exchange) VALUES ('', '', '')`)
	f.Insert(`(routing_key, payload) VALUES ('', 'null')`)
	rows := f.takeAll()
	empty, none := rows[0], rows[1]
	if !empty.Binary || empty.Payload == nil || len(empty.Payload) != 0 || empty.Exchange == nil || *empty.Exchange != "" {
		t.Errorf("%+v", empty)
	}
	if none.Binary || string(none.Payload) != "null" || none.Exchange != nil || none.OrderingKey != nil ||
		none.Headers != nil || none.Properties != nil || none.AvailableAt != nil || none.XID != 0 {
		t.Errorf("%+v", none)
	}
}

func TestLastIDIncludesOpenTransactions(t *testing.T) {
	f := newFixture(t)
	last := func() int64 {
		id, ok, err := f.store.LastID(t.Context())
		if err != nil || !ok {
			t.Fatalf("ok = %v, err = %v", ok, err)
		}
		return id
	}
	if got := last(); got != 0 {
		t.Errorf("for an empty table: %d", got)
	}
	tx, err := f.Conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO outbox (routing_key, payload) VALUES ('r', '1'), ('r', '2')`); err != nil {
		t.Fatal(err)
	}
	if got := last(); got != 2 {
		t.Errorf("with two uncommitted rows: %d", got)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.Exec(`ALTER TABLE outbox ALTER id DROP IDENTITY`)
	if _, ok, err := f.store.LastID(t.Context()); ok || err != nil {
		t.Errorf("without a sequence: ok = %v, err = %v", ok, err)
	}
}
