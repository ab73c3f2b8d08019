package wire

import (
	"errors"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
)

var testLimits = Limits{DefaultExchange: "default", FrameMax: defaultFrameMax}

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
	want := Parcel{
		Exchange: "x", Key: "k", MessageID: id.String(), Timestamp: created.Truncate(time.Second), Body: []byte(`{"a": 1}`),
		Headers: map[string]any{
			"int": int64(9007199254740993), "least": int64(math.MinInt64), "float": 1.5, "exponent": 100.0,
			"text": "ü", "yes": true, "nothing": nil, "list": []any{int64(1), "a", map[string]any{"b": []any{2.5}}},
			"table": map[string]any{"c": map[string]any{"d": int64(3)}}, "BCC": []any{"k2"},
		},
		Properties: Properties{
			ContentType: "text/plain", ContentEncoding: "gzip", CorrelationID: "c", ReplyTo: "r", Expiration: "60000",
			Priority: new(uint8(9)), Type: "t", UserID: "guest", DeliveryMode: 1,
		},
	}
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
	if want := (map[string]any{"tenant": "acme", "n": int64(1), "on": true}); err != nil || !reflect.DeepEqual(p.Headers, want) {
		t.Errorf("%v, %v", p.Headers, err)
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
		if p.Expiration != "" {
			if ms, err = strconv.Atoi(p.Expiration); err != nil {
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
	if p.Exchange != "default" || p.ContentType != "application/json" || p.DeliveryMode != 2 ||
		!p.Timestamp.IsZero() || !reflect.DeepEqual(p.Headers, map[string]any{"x-possible-duplicate": true}) {
		t.Errorf("%+v", p)
	}
	p, err = Encode(&outbox.Message{Row: outbox.Row{SchemaVersion: 1, Binary: true, Payload: []byte{}}}, testLimits, false)
	if err != nil || p.ContentType != "application/octet-stream" || p.Headers != nil {
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
