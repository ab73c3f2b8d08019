package wire

import (
	"bytes"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// An encoder would change 1.0E+2, <&> and spaces.
func TestLineKeepsThePayloadByteForByte(t *testing.T) {
	id, err := outbox.ParseUUID([]byte("5f0c4a86-5e0b-4f0c-9b0e-6b1d3c1f9a52"))
	if err != nil {
		t.Fatal(err)
	}
	exchange, key := "x", "k<1>"
	m := outbox.Message{
		Row: outbox.Row{
			ID:            7,
			MessageID:     id,
			RoutingKey:    "orders.created",
			SchemaVersion: 1,
			CreatedAt:     time.Date(2026, 11, 23, 10, 0, 0, 0, time.UTC),
			Headers:       []byte(`{"a": "<&>"}`),
		},
	}
	const head = `{"id":7,"message_id":"5f0c4a86-5e0b-4f0c-9b0e-6b1d3c1f9a52","exchange":"d","routing_key":"orders.created","ordering_key":null,` +
		`"headers":{"a":"<&>"},"properties":null,"created_at":"2026-11-23T10:00:00Z","possible_duplicate":false,`
	check := func(wanted string) {
		t.Helper()
		var b bytes.Buffer
		if err := AppendLine(&b, &m, "d"); err != nil {
			t.Fatal(err)
		}
		if b.String() != wanted+"\n" {
			t.Errorf("got  %swant %s", b.String(), wanted)
		}
	}
	m.Payload = []byte(` {"b" : 1.0E+2, "a":"\u00e9<&>", "a":12345678901234567890123} `)
	check(head + `"payload":` + string(m.Payload) + `,"payload_base64":null}`)
	m.Payload = []byte("null")
	check(head + `"payload":null,"payload_base64":null}`)
	m.Payload = []byte("{\n}")
	check(head + `"payload":null,"payload_base64":"ewp9"}`)
	m.Payload, m.Binary = []byte{}, true
	check(head + `"payload":null,"payload_base64":""}`)

	m.Exchange, m.OrderingKey, m.Properties, m.PossibleDuplicate = &exchange, &key, []byte(`{"priority":1}`), true
	m.Payload, m.Binary, m.Headers = []byte("1"), false, nil
	check(`{"id":7,"message_id":"5f0c4a86-5e0b-4f0c-9b0e-6b1d3c1f9a52","exchange":"x","routing_key":"orders.created","ordering_key":"k<1>",` +
		`"headers":null,"properties":{"priority":1},"created_at":"2026-11-23T10:00:00Z","possible_duplicate":true,"payload":1,"payload_base64":null}`)
}

// Only the relay knows whether a message is a possible duplicate.
func TestLineDropsTheApplicationsMark(t *testing.T) {
	for _, test := range []struct{ headers, want string }{
		{`{"x-possible-duplicate": "me", "b": {"x-possible-duplicate": 1.0E+2}}`, `{"b":{"x-possible-duplicate":1.0E+2}}`},
		{`{"x-possible-duplicate": true}`, `{}`},
		{`{"b": "x-possible-duplicate", "a": 1}`, `{"a":1,"b":"x-possible-duplicate"}`},
	} {
		line, err := NewLine(&outbox.Message{Row: outbox.Row{Headers: []byte(test.headers), Payload: []byte("1"), SchemaVersion: 1}}, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := string(line.Headers); got != test.want {
			t.Errorf("%s: got %s, want %s", test.headers, got, test.want)
		}
	}
}
