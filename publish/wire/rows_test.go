package wire

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// wantInvalid checks the reason; an empty reason means that the message is encoded.
func wantInvalid(t *testing.T, m *outbox.Message, reason outbox.Reason, detail string) {
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
}

// The table has no CHECKs, so any row is possible.
func TestInvalidRowsGetAReason(t *testing.T) {
	const row, routing = outbox.ReasonInvalidRow, outbox.ReasonInvalidRouting
	name := func(text string, n int) *string {
		text = strings.Repeat(text, n)
		return &text
	}
	for what, test := range map[string]struct {
		change func(m *outbox.Message)
		reason outbox.Reason
		detail string
	}{
		"a plain one":           {func(*outbox.Message) {}, "", ""},
		"an empty body":         {func(m *outbox.Message) { m.Payload, m.Binary = []byte{}, true }, "", ""},
		"no payload":            {func(m *outbox.Message) { m.Payload = nil }, row, "payload and payload_bytes are both null: set one of them"},
		"both payloads":         {func(m *outbox.Message) { m.BothPayloads = true }, row, "payload and payload_bytes are both set: set only one of them"},
		"schema version 0":      {func(m *outbox.Message) { m.SchemaVersion = 0 }, row, "schema_version is 0, must be at least 1"},
		"schema version -32768": {func(m *outbox.Message) { m.SchemaVersion = -32768 }, row, "schema_version is -32768, must be at least 1"},
		"negative attempts":     {func(m *outbox.Message) { m.Attempts = -1 }, row, "attempts is -1, must not be negative"},
		"the most attempts":     {func(m *outbox.Message) { m.Attempts = 1<<31 - 1 }, "", ""},
		"routing key, 255":      {func(m *outbox.Message) { m.RoutingKey = *name("k", 255) }, "", ""},
		"routing key, 256":      {func(m *outbox.Message) { m.RoutingKey = *name("k", 256) }, routing, "routing_key is longer than 255 bytes"},
		"routing key, 2 * 127":  {func(m *outbox.Message) { m.RoutingKey = *name("é", 127) }, "", ""},
		"routing key, 2 * 128":  {func(m *outbox.Message) { m.RoutingKey = *name("é", 128) }, routing, "routing_key is longer than 255 bytes"},
		"empty exchange":        {func(m *outbox.Message) { m.Exchange = name("", 0) }, "", ""},
		"exchange, 255":         {func(m *outbox.Message) { m.Exchange = name("x", 255) }, "", ""},
		"exchange, 256":         {func(m *outbox.Message) { m.Exchange = name("x", 256) }, routing, "exchange is longer than 255 bytes"},
		"exchange, 2 * 128":     {func(m *outbox.Message) { m.Exchange = name("é", 128) }, routing, "exchange is longer than 255 bytes"},
	} {
		t.Run(what, func(t *testing.T) {
			m := wellFormed()
			test.change(m)
			wantInvalid(t, m, test.reason, test.detail)
		})
	}
}

func TestHeadersMustBeAJSONObject(t *testing.T) {
	for text, kind := range map[string]string{"[1]": "array", "null": "null", `"x"`: "string", "1": "number", "true": "bool"} {
		m := wellFormed()
		m.Headers = []byte(text)
		wantInvalid(t, m, outbox.ReasonInvalidHeaders, "headers: must be a JSON object, not JSON "+kind)
	}
	m := wellFormed()
	m.Headers = []byte(`{"a": {"b": [1]}}`)
	wantInvalid(t, m, "", "")
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
