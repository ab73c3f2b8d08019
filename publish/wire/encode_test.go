package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
)

var testLimits = Limits{DefaultExchange: "default", FrameMax: defaultFrameMax, Login: "guest"}

func TestEncode(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
	id := outbox.UUID{15: 9}
	exchange := "x"
	m := &outbox.Message{
		Row: outbox.Row{
			MessageID:     id,
			Exchange:      &exchange,
			RoutingKey:    "k",
			SchemaVersion: 1,
			Payload:       []byte(`{"a": 1}`),
			CreatedAt:     created,
			Headers: []byte(`{
			"int": 9007199254740993, "least": -9223372036854775808, "float": 1.50, "exponent": 1e2,
			"text": "ü", "yes": true, "nothing": null, "list": [1, "a", {"b": [2.5]}], "table": {"c": {"d": 3}},
			"x-possible-duplicate": true, "BCC": ["k2"]}`),
			Properties: []byte(`{
			"content_type": "text/plain", "content_encoding": "gzip", "correlation_id": "c", "reply_to": "r",
			"expiration": 60000, "priority": 9, "type": "t", "user_id": "guest", "delivery_mode": 1}`),
		},
	}
	p, err := Encode(m, testLimits, false)
	if err != nil {
		t.Fatal(err)
	}
	want := Parcel{Exchange: "x", Key: "k", Risky: true, Body: amqp091.Publishing{
		Headers: amqp091.Table{
			"int": int64(9007199254740993), "least": int64(math.MinInt64), "float": 1.5, "exponent": 100.0,
			"text": "ü", "yes": true, "nothing": nil, "list": []any{int64(1), "a", amqp091.Table{"b": []any{2.5}}},
			"table": amqp091.Table{"c": amqp091.Table{"d": int64(3)}}, "BCC": []any{"k2"},
		},
		ContentType: "text/plain", ContentEncoding: "gzip", CorrelationId: "c", ReplyTo: "r", Expiration: "60000",
		Priority: 9, Type: "t", UserId: "guest", DeliveryMode: 1, MessageId: id.String(),
		Timestamp: created.Truncate(time.Second), Body: []byte(`{"a": 1}`),
	}}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("got  %+v\nwant %+v", p, want)
	}
}

// Header columns become headers, unless the row has a header of the same name.
func TestColumnsBecomeHeaders(t *testing.T) {
	m := wellFormed()
	m.Extra = []outbox.Header{{Name: "tenant", Value: "acme"}, {Name: "n", Value: int64(7)}, {Name: "on", Value: true}}
	m.Headers = []byte(`{"n": 1}`)
	p, err := Encode(m, testLimits, false)
	if want := (amqp091.Table{"tenant": "acme", "n": int64(1), "on": true}); err != nil || !reflect.DeepEqual(p.Body.Headers, want) {
		t.Errorf("%v, %v", p.Body.Headers, err)
	}
	if got := string(withExtra(m)); got != `{"n":1,"on":true,"tenant":"acme"}` {
		t.Error(got)
	}
	m.Extra[0].Value = strings.Repeat("x", defaultFrameMax)
	var bad *invalid
	if _, err := Encode(m, testLimits, false); !errors.As(err, &bad) || bad.reason != outbox.ReasonInvalidHeaders {
		t.Errorf("a value beyond a frame: %v", err)
	}
}

// A queue drops a message at its expires_at or after its TTL, if that is earlier.
func TestAMessageCarriesItsRemainingTime(t *testing.T) {
	for _, c := range []struct {
		left        time.Duration
		own         string
		least, most int
	}{
		{time.Hour, ``, 3_590_000, 3_600_000},
		{time.Hour, `{"expiration": 60000}`, 60_000, 60_000},
		{time.Hour, `{"expiration": "4294967295"}`, 3_590_000, 3_600_000},
		{1000 * time.Hour, ``, 3_599_990_000, 3_600_000_000},
		{1200 * time.Hour, ``, -1, -1}, // RabbitMQ's limit is 49 days
		{math.MaxInt64, ``, -1, -1},
		{1200 * time.Hour, `{"expiration": 7}`, 7, 7},
	} {
		m := wellFormed()
		m.Deadline, m.Properties = new(time.Now().Add(c.left)), []byte(c.own)
		p, err := Encode(m, testLimits, false)
		if err != nil {
			t.Fatal(err)
		}
		ms := -1
		if p.Body.Expiration != "" {
			if ms, err = strconv.Atoi(p.Body.Expiration); err != nil {
				t.Fatal(err)
			}
		}
		if ms < c.least || ms > c.most {
			t.Errorf("%s left, properties %s: expiration %d, want %d to %d", c.left, c.own, ms, c.least, c.most)
		}
	}
	for _, left := range []time.Duration{0, -time.Hour, math.MinInt64} {
		m := wellFormed()
		m.Deadline = new(time.Now().Add(left))
		_, err := Encode(m, testLimits, false)
		var bad *invalid
		if !errors.As(err, &bad) || bad.reason != outbox.ReasonExpired {
			t.Errorf("%s left: %v", left, err)
		}
	}
}

func TestEncodeDefaults(t *testing.T) {
	p, err := Encode(&outbox.Message{Row: outbox.Row{RoutingKey: "k", SchemaVersion: 1, Payload: []byte("1")}}, testLimits, true)
	if err != nil {
		t.Fatal(err)
	}
	if p.Exchange != "default" || p.Risky || p.Body.ContentType != "application/json" || p.Body.DeliveryMode != 2 ||
		!p.Body.Timestamp.IsZero() || !reflect.DeepEqual(p.Body.Headers, amqp091.Table{"x-possible-duplicate": true}) {
		t.Errorf("%+v", p)
	}
	p, err = Encode(&outbox.Message{Row: outbox.Row{SchemaVersion: 1, Binary: true, Payload: []byte{}}}, testLimits, false)
	if err != nil || p.Body.ContentType != "application/octet-stream" || p.Body.Headers != nil {
		t.Errorf("%+v", p)
	}
}

// wellFormed is a message with only a payload.
func wellFormed() *outbox.Message {
	return &outbox.Message{Row: outbox.Row{SchemaVersion: 1, Payload: []byte("{}")}}
}

func TestEncodeRejectsWhatAMQPCannotCarry(t *testing.T) {
	long := strings.Repeat("x", 256)
	list := func(n int) string { return "[" + strings.Repeat("null,", n-1) + "null]" }
	for name, c := range map[string]struct {
		headers, properties, key string
		reason                   outbox.Reason
		names                    string // must be in the detail
	}{
		"routing key":            {key: long, reason: outbox.ReasonInvalidRouting, names: "longer than 255"},
		"too great":              {headers: `{"a": {"b": [0, 1, 9223372036854775808]}}`, reason: outbox.ReasonInvalidHeaders, names: "headers.a.b[2]"},
		"float overflow":         {headers: `{"a": 1e999}`, reason: outbox.ReasonInvalidHeaders, names: "headers.a"},
		"long key":               {headers: `{"` + long + `": 1}`, reason: outbox.ReasonInvalidHeaders, names: "256"},
		"long key inside":        {headers: `{"a": [{"` + long + `": 1}]}`, reason: outbox.ReasonInvalidHeaders, names: "headers.a[0]"},
		"too deep":               {headers: publishtest.NestedHeaders(deepestHeader + 1), reason: outbox.ReasonInvalidHeaders, names: "32"},
		"too many elements":      {headers: `{"a": {"b": ` + list(8193) + `}}`, reason: outbox.ReasonInvalidHeaders, names: "headers.a.b"},
		"too many keys inside":   {headers: `{"a": ` + string(publishtest.ManyHeaders(8193)) + `}`, reason: outbox.ReasonInvalidHeaders, names: "8192"},
		"too many headers":       {headers: string(publishtest.ManyHeaders(8185)), reason: outbox.ReasonInvalidHeaders, names: "8184"},
		"too large":              {headers: `{"a": "` + strings.Repeat("x", 131072) + `"}`, reason: outbox.ReasonInvalidHeaders, names: "131072"},
		"headers not an object":  {headers: `[1]`, reason: outbox.ReasonInvalidHeaders, names: "object"},
		"headers not JSON":       {headers: `{`, reason: outbox.ReasonInvalidHeaders, names: "object"},
		"headers and more":       {headers: `{} {}`, reason: outbox.ReasonInvalidHeaders, names: "after"},
		"CC not a list":          {headers: `{"CC": "a"}`, reason: outbox.ReasonInvalidHeaders, names: "headers.CC"},
		"BCC of numbers":         {headers: `{"BCC": [1]}`, reason: outbox.ReasonInvalidHeaders, names: "headers.BCC"},
		"unknown property":       {properties: `{"contentType": "a"}`, reason: outbox.ReasonInvalidProperties, names: "contentType"},
		"unknown null property":  {properties: `{"cluster_id": null}`, reason: outbox.ReasonInvalidProperties, names: "cluster_id"},
		"null headers":           {headers: ` null`, reason: outbox.ReasonInvalidHeaders, names: "headers: must be a JSON object"},
		"null properties":        {properties: `null`, reason: outbox.ReasonInvalidProperties, names: "properties: must be a JSON object"},
		"type of a property":     {properties: `{"type": 5}`, reason: outbox.ReasonInvalidProperties, names: "string"},
		"long property":          {properties: `{"app_id": "` + long + `"}`, reason: outbox.ReasonInvalidProperties, names: "255"},
		"fast reply":             {properties: `{"reply_to": "amq.rabbitmq.reply-to"}`, reason: outbox.ReasonInvalidProperties, names: "reply_to"},
		"priority":               {properties: `{"priority": 256}`, reason: outbox.ReasonInvalidProperties, names: "0 to 255"},
		"priority as text":       {properties: `{"priority": "1"}`, reason: outbox.ReasonInvalidProperties, names: "integer"},
		"fractional priority":    {properties: `{"priority": 1.0}`, reason: outbox.ReasonInvalidProperties, names: "integer"},
		"delivery mode":          {properties: `{"delivery_mode": 7}`, reason: outbox.ReasonInvalidProperties, names: "persistent"},
		"negative expiration":    {properties: `{"expiration": -1}`, reason: outbox.ReasonInvalidProperties, names: "milliseconds"},
		"great expiration":       {properties: `{"expiration": "4294967296"}`, reason: outbox.ReasonInvalidProperties, names: "4294967295"},
		"expiration of a date":   {properties: `{"expiration": "tomorrow"}`, reason: outbox.ReasonInvalidProperties, names: "digits"},
		"empty expiration":       {properties: `{"expiration": ""}`, reason: outbox.ReasonInvalidProperties, names: "digits"},
		"properties not objects": {properties: `7`, reason: outbox.ReasonInvalidProperties, names: "object"},
	} {
		t.Run(name, func(t *testing.T) {
			m := wellFormed()
			m.RoutingKey, m.Headers, m.Properties = c.key, []byte(c.headers), []byte(c.properties)
			_, err := Encode(m, testLimits, false)
			var bad *invalid
			if !errors.As(err, &bad) || bad.reason != c.reason || !strings.Contains(bad.detail, c.names) {
				t.Errorf("got %v, want %s naming %q", err, c.reason, c.names)
			}
			if err != nil && len(err.Error()) > 500 {
				t.Errorf("the detail has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestAForeignUserIDIsRisky(t *testing.T) {
	for body, want := range map[string]bool{
		`{"user_id": "guest"}`: false, `{"user_id": "other"}`: true, `{"type": "a"}`: false,
	} {
		m := wellFormed()
		m.Properties = []byte(body)
		p, err := Encode(m, testLimits, false)
		if err != nil || p.Risky != want {
			t.Errorf("%s: %v, %v", body, p.Risky, err)
		}
	}
}

// wireSize returns the size of the content header as the library writes it.
func wireSize(p Parcel) int {
	var wire bytes.Buffer
	size := 14 // class, weight, body size, flags
	for _, s := range []string{
		p.Body.ContentType, p.Body.ContentEncoding, p.Body.CorrelationId, p.Body.ReplyTo,
		p.Body.Expiration, p.Body.MessageId, p.Body.Type, p.Body.UserId, p.Body.AppId,
	} {
		if s != "" {
			size += 1 + len(s)
		}
	}
	if len(p.Body.Headers) > 0 {
		writeTable(&wire, p.Body.Headers)
	}
	return size + 1 + 1 + 8 + wire.Len()
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
		p, err := Encode(m, Limits{FrameMax: frame}, duplicate)
		var bad *invalid
		if err != nil {
			if !errors.As(err, &bad) || bad.reason == "" || bad.detail == "" {
				t.Fatalf("%#v", err)
			}
			return
		}
		if err := p.Body.Headers.Validate(); err != nil {
			t.Fatal(err)
		}
		if size := wireSize(p); size+frameOverhead > frame {
			t.Fatalf("the content header has %d bytes", size)
		}
		if len(p.Key) > 255 || len(p.Exchange) > 255 {
			t.Fatal("too long")
		}
		if _, marked := p.Body.Headers[outbox.PossibleDuplicateHeader]; marked != duplicate {
			t.Fatalf("marked %v, want %v", marked, duplicate)
		}
		if len(headers) > 0 && !json.Valid(headers) {
			t.Fatal("accepted headers that are not JSON")
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	plain := &outbox.Message{Row: outbox.Row{RoutingKey: "orders.created", SchemaVersion: 1, Payload: []byte(`{"order_id": 42}`), CreatedAt: time.Now()}}
	traced := *plain
	traced.Headers = []byte(`{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tenant": 7}`)
	for name, m := range map[string]*outbox.Message{"plain": plain, "headers": &traced} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Encode(m, testLimits, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
