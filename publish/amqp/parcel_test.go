package amqp

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish/wire"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// encoder encodes for the login guest.
func encoder(frameMax int) *session {
	node := amqpdial.Node{URI: amqp091.URI{Username: "guest"}}
	return &session{Publisher: &Publisher{}, opened: opened{node: node}, limits: wire.Limits{FrameMax: frameMax}}
}

func TestTheLibraryTakesEachObjectAsATable(t *testing.T) {
	m := &outbox.Message{Row: outbox.Row{SchemaVersion: 1, Payload: []byte("1"), Headers: []byte(`{"a": [{"b": {"c": 1}}]}`)}}
	p, err := encoder(0).encode(m, true)
	want := amqp091.Table{
		"a": []any{amqp091.Table{"b": amqp091.Table{"c": int64(1)}}}, outbox.PossibleDuplicateHeader: true,
	}
	if err != nil || !reflect.DeepEqual(p.body.Headers, want) {
		t.Errorf("%v, %v", p.body.Headers, err)
	}
}

// wireSize returns the size of the content header as the library writes it.
func wireSize(p parcel) int {
	var headers bytes.Buffer
	size := 14 // class, weight, body size, flags
	for _, s := range []string{
		p.body.ContentType, p.body.ContentEncoding, p.body.CorrelationId, p.body.ReplyTo,
		p.body.Expiration, p.body.MessageId, p.body.Type, p.body.UserId, p.body.AppId,
	} {
		if s != "" {
			size += 1 + len(s)
		}
	}
	if len(p.body.Headers) > 0 {
		writeTable(&headers, p.body.Headers)
	}
	return size + 1 + 1 + 8 + headers.Len()
}

// writeTable writes a field table as specified by AMQP.
func writeTable(w *bytes.Buffer, table amqp091.Table) {
	var body bytes.Buffer
	for key, value := range table {
		body.WriteByte(byte(len(key)))
		body.WriteString(key)
		writeField(&body, value)
	}
	fmt.Fprintf(w, "%04d", 0) // the length, four bytes
	w.Write(body.Bytes())
}

func writeField(w *bytes.Buffer, value any) {
	w.WriteByte('?')
	switch v := value.(type) {
	case nil:
	case bool:
		w.WriteByte(0)
	case int64, float64:
		w.Write(make([]byte, 8))
	case string:
		w.Write(make([]byte, 4))
		w.WriteString(v)
	case amqp091.Table:
		writeTable(w, v)
	case []any:
		w.Write(make([]byte, 4))
		for _, element := range v {
			writeField(w, element)
		}
	}
}

// Encode does not panic for any row. The library takes the messages that it accepts, and they fit into a frame.
func FuzzEncode(f *testing.F) {
	f.Add("k", "x", []byte(`{}`), []byte(`{"a": [1, 2.5, null, {"b": "c"}]}`), []byte(`{"priority": 3, "type": "t"}`), true, int64(0))
	f.Add("", "", []byte(``), []byte(`{"CC": ["a"], "x-possible-duplicate": false}`), []byte(`{"expiration": "1", "user_id": "u"}`), false, int64(-1))
	f.Add("k", "x", []byte(`1`), []byte(`{"a": 1e400, "a": 18446744073709551616}`), []byte(`{"expiration": 4294967296}`), false, int64(math.MaxInt64))
	f.Add("k", "x", []byte(`1`), []byte(`{"\u0000": "\u0000", "a": -0, "b": 1E+2}`), []byte(`null`), false, int64(1))
	f.Fuzz(func(t *testing.T, key, exchange string, payload, headers, properties []byte, duplicate bool, created int64) {
		m := &outbox.Message{
			Row: outbox.Row{
				RoutingKey:    key,
				Exchange:      &exchange,
				SchemaVersion: 1,
				Payload:       payload,
				Headers:       headers,
				Properties:    properties,
				CreatedAt:     time.Unix(created, 0),
			},
		}
		const frame = 4096 // the smallest that AMQP allows
		p, err := encoder(frame).encode(m, duplicate)
		if err != nil {
			if bad := wire.Impossible(m, err); bad.Reason == "" || bad.Detail == "" {
				t.Fatalf("%#v", err)
			}
			return
		}
		must(t, p.body.Headers.Validate())
		if size := wireSize(p); size+8 > frame {
			t.Fatalf("the content header has %d bytes", size)
		}
		if len(p.key) > 255 || len(p.exchange) > 255 {
			t.Fatal("too long")
		}
		if _, marked := p.body.Headers[outbox.PossibleDuplicateHeader]; marked != duplicate {
			t.Fatalf("marked %v, want %v", marked, duplicate)
		}
		if len(headers) > 0 && !json.Valid(headers) {
			t.Fatal("accepted headers that are not JSON")
		}
	})
}

// An unroutable message comes back with its headers, and the library must be able to read them.
func TestReturnsWithTheDeepestAndLargestHeadersAreRead(t *testing.T) {
	t.Parallel()
	_, q, r := publishing(t)
	mark := r.Mark()
	var k publishtest.Maker
	const deepest, mostHeaders, mostElements = 32, 8184, 8192 // as docs/contract.md says
	within := func(what string) []byte { return []byte(`{"a": ` + what + `}`) }
	list := func(n int) string { return "[" + strings.Repeat("null,", n-1) + "null]" }
	for name, headers := range map[string]struct{ most, beyond []byte }{
		"nesting":  {[]byte(publishtest.NestedHeaders(deepest)), []byte(publishtest.NestedHeaders(deepest + 1))},
		"headers":  {publishtest.ManyHeaders(mostHeaders), publishtest.ManyHeaders(mostHeaders + 1)},
		"a table":  {within(string(publishtest.ManyHeaders(mostElements))), within(string(publishtest.ManyHeaders(mostElements + 1)))},
		"an array": {within(list(mostElements)), within(list(mostElements + 1))},
	} {
		most, beyond := k.Make("", "nowhere", `{}`), k.Make("", "nowhere", `{}`)
		most.Headers, beyond.Headers = headers.most, headers.beyond
		most.PossibleDuplicate = true // the mark is added to these
		neighbour := k.Make("", q, `{}`)
		results := r.Answers(t, most, beyond, neighbour)
		checkRejected(t, results[0], outbox.ReasonUnroutable)
		if results[1].Outcome != outbox.Impossible || results[1].Reason != outbox.ReasonInvalidHeaders {
			t.Errorf("one more %s: %+v", name, results[1])
		}
		publishtest.AllAre(t, results[2:], outbox.Confirmed)
	}
	if r.Mark() != mark {
		t.Error("the connection was lost")
	}
}

// A property that was given as 0 has its flag on the wire, and one that was not given has none.
func TestZeroValuesThatWereGivenAreSent(t *testing.T) {
	t.Parallel()
	const priority, timestamp = 0x0800, 0x0040
	u := services.VHost(t)
	frames, behind := behindFrames(t, u)
	a := newAdmin(t, behind)
	q := a.queue(services.Name(t), nil)
	var flags uint16
	frames.Rule(func(frame []byte) time.Duration {
		if frame[0] == 2 { // a content header
			flags = binary.BigEndian.Uint16(frame[19:])
		}
		return 0
	})
	r := startAMQP(t, Config{URL: u})
	var k publishtest.Maker
	tests := []struct {
		properties string
		want       uint16
		mode, got  uint8
		size       int
	}{
		{`{}`, 0, 2, 0, 0},
		{`{"priority": 7}`, priority, 2, 7, 0},
		{`{"priority": 0}`, priority, 2, 0, 0},
		{`{"priority": 0, "delivery_mode": 1, "content_encoding": "x", "correlation_id": "c"}`, priority, 1, 0, 0},
		// The library writes these in several pieces.
		{`{"priority": 0}`, priority, 2, 0, 4000},
		{`{"priority": 0}`, priority, 2, 0, 4096},
		{`{"priority": 0}`, priority, 2, 0, 100_000},
		{`{}`, 0, 2, 0, 100_000},
	}
	var messages []*outbox.Message
	for _, test := range tests {
		m := k.Make("", q, `"`+strings.Repeat("x", 2*test.size)+`"`)
		m.Properties, m.CreatedAt = []byte(test.properties), time.Unix(0, 0)
		if test.size > 0 {
			m.Headers = []byte(`{"a": "` + strings.Repeat("x", test.size) + `"}`)
		}
		messages = append(messages, m)
	}
	publishtest.AllAre(t, r.publishUntilConfirmed(t, messages...), outbox.Confirmed)
	for i, test := range tests {
		d, _, err := a.channel.Get(q, true)
		must(t, err)
		if got := flags & (priority | timestamp); got != test.want|timestamp || d.Priority != test.got || d.DeliveryMode != test.mode ||
			len(d.Body) != len(messages[i].Payload) || d.Timestamp.Unix() != 0 {
			t.Errorf("%s with headers of %d: flags %#x, priority %d, mode %d, %v", test.properties, test.size, flags, d.Priority, d.DeliveryMode, d.Timestamp)
		}
	}
}
