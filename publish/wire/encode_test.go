package wire

import (
	"errors"
	"fmt"
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
		wantInvalid(t, m, outbox.ReasonExpired, "")
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
		"routing key":           {key: long, reason: outbox.ReasonInvalidRouting, names: "longer than 255"},
		"too great":             {headers: `{"a": {"b": [0, 1, 9223372036854775808]}}`, reason: outbox.ReasonInvalidHeaders, names: "headers.a.b[2]"},
		"float overflow":        {headers: `{"a": 1e999}`, reason: outbox.ReasonInvalidHeaders, names: "headers.a"},
		"long key":              {headers: `{"` + long + `": 1}`, reason: outbox.ReasonInvalidHeaders, names: "256"},
		"long key inside":       {headers: `{"a": [{"` + long + `": 1}]}`, reason: outbox.ReasonInvalidHeaders, names: "headers.a[0]"},
		"too deep":              {headers: publishtest.NestedHeaders(deepestHeader + 1), reason: outbox.ReasonInvalidHeaders, names: "32"},
		"too many elements":     {headers: `{"a": {"b": ` + list(8193) + `}}`, reason: outbox.ReasonInvalidHeaders, names: "headers.a.b"},
		"too many keys inside":  {headers: `{"a": ` + string(publishtest.ManyHeaders(8193)) + `}`, reason: outbox.ReasonInvalidHeaders, names: "8192"},
		"too many headers":      {headers: string(publishtest.ManyHeaders(8185)), reason: outbox.ReasonInvalidHeaders, names: "8184"},
		"too large":             {headers: `{"a": "` + strings.Repeat("x", 131072) + `"}`, reason: outbox.ReasonInvalidHeaders, names: "131072"},
		"headers not JSON":      {headers: `{`, reason: outbox.ReasonInvalidHeaders, names: "object"},
		"headers and more":      {headers: `{} {}`, reason: outbox.ReasonInvalidHeaders, names: "after"},
		"CC not a list":         {headers: `{"CC": "a"}`, reason: outbox.ReasonInvalidHeaders, names: "headers.CC"},
		"BCC of numbers":        {headers: `{"BCC": [1]}`, reason: outbox.ReasonInvalidHeaders, names: "headers.BCC"},
		"unknown null property": {properties: `{"cluster_id": null}`, reason: outbox.ReasonInvalidProperties, names: "cluster_id"},
		"fast reply":            {properties: `{"reply_to": "amq.rabbitmq.reply-to"}`, reason: outbox.ReasonInvalidProperties, names: "reply_to"},
	} {
		t.Run(name, func(t *testing.T) {
			m := wellFormed()
			m.RoutingKey, m.Headers, m.Properties = c.key, []byte(c.headers), []byte(c.properties)
			err := wantInvalid(t, m, c.reason, c.names)
			if err != nil && len(err.Error()) > 500 {
				t.Errorf("the detail has %d bytes", len(err.Error()))
			}
		})
	}
}

// wantInvalid checks the reason; an empty reason means that the message is encoded.
func wantInvalid(t *testing.T, m *outbox.Message, reason outbox.Reason, detail string) error {
	t.Helper()
	_, err := Encode(m, testLimits, false)
	var bad *invalid
	errors.As(err, &bad)
	switch {
	case reason == "" && err != nil:
		t.Errorf("invalid: %v", err)
	case reason == "":
	case bad == nil:
		t.Errorf("got %v, want %s", err, reason)
	case bad.reason != reason || !strings.Contains(bad.detail, detail):
		t.Errorf("got %s (%s), want %s (%s)", bad.reason, bad.detail, reason, detail)
	}
	return err
}

// Numbers are as jsonb prints them, 1e2 as 100.
func TestInvalidPropertiesGetAReason(t *testing.T) {
	const reason = outbox.ReasonInvalidProperties
	check := func(properties string, reason outbox.Reason, detail string) {
		t.Helper()
		m := wellFormed()
		m.Properties = []byte(properties)
		wantInvalid(t, m, reason, detail)
	}
	long := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	type values struct {
		good, bad []string
		says      string
	}
	all := map[string]values{
		"priority": {
			[]string{"0", "255", "100"},
			[]string{"-1", "256", "1.5", `"1"`, "null", "true", "[]", "{}", "1000000000"},
			"must be an integer from 0 to 255",
		},
		"delivery_mode": {[]string{"1", "2"}, []string{"0", "3", `"2"`, "2.0", "null", "true", "[2]"}, "must be 1 (transient) or 2 (persistent)"},
		"expiration": {
			[]string{`"60000"`, "60000", "0", `"0"`, "4294967295", `"4294967295"`},
			[]string{"-1", `"-1"`, `"1 minute"`, `""`, "1.5", "4294967296", `"4294967296"`, "99999999999999999999", "null", "true", "[1]"},
			"must be milliseconds, an integer from 0 to 4294967295",
		},
		"unknown":      {nil, []string{"1", `"x"`, "null"}, "is not known; known are content_type, content_encoding"},
		"Content_Type": {nil, []string{`"x"`}, "is not known"},
		"message_id":   {nil, []string{`"x"`}, "is not known"},
	}
	for _, name := range []string{"content_type", "content_encoding", "correlation_id", "reply_to", "type", "user_id", "app_id"} {
		all[name] = values{
			[]string{`"x"`, `""`, long(255)},
			[]string{long(256), `"` + strings.Repeat("é", 128) + `"`, "1", "null", "{}", "[]", "true"},
			"must be a string of at most 255 bytes",
		}
	}
	for name, v := range all {
		for _, good := range v.good {
			check(fmt.Sprintf(`{%q: %s}`, name, good), "", "")
		}
		for _, bad := range v.bad {
			check(fmt.Sprintf(`{%q: %s}`, name, bad), reason, fmt.Sprintf("properties: %q %s", name, v.says))
		}
	}
	check("{}", "", "")
	check(`{"type": "t", "priority": 3, "expiration": "5"}`, "", "")
	for _, bad := range []string{"[]", "null", "1", `"content_type"`, `["content_type"]`} {
		check(bad, reason, "properties: must be a JSON object")
	}
}
