package amqp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish/wire"
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
