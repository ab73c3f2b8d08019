package outbox_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// A defect is found for any publisher, without parsing.
func TestDefectsOfAMessage(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	after := func(d time.Duration) *time.Time { at := now.Add(d); return &at }
	long := strings.Repeat("ü", 128) // 256 bytes
	for name, c := range map[string]struct {
		change func(m *outbox.Message)
		reason outbox.Reason
		says   string
	}{
		"none":              {func(*outbox.Message) {}, "", ""},
		"expires later":     {func(m *outbox.Message) { m.Deadline = after(time.Millisecond) }, "", ""},
		"expires now":       {func(m *outbox.Message) { m.Deadline = after(0) }, outbox.ReasonExpired, "has passed"},
		"expires too soon":  {func(m *outbox.Message) { m.Deadline = after(time.Millisecond - 1) }, outbox.ReasonExpired, "has passed"},
		"the zero time":     {func(m *outbox.Message) { m.Deadline = new(time.Time) }, outbox.ReasonExpired, "0001-01-01"},
		"no routing key":    {func(m *outbox.Message) { m.NoRoutingKey = true }, outbox.ReasonInvalidRow, "routing_key is null"},
		"both payloads":     {func(m *outbox.Message) { m.BothPayloads = true }, outbox.ReasonInvalidRow, "both set"},
		"no payload":        {func(m *outbox.Message) { m.Payload = nil }, outbox.ReasonInvalidRow, "both null"},
		"empty body":        {func(m *outbox.Message) { m.Payload, m.Binary = []byte{}, true }, "", ""},
		"version 0":         {func(m *outbox.Message) { m.SchemaVersion = 0 }, outbox.ReasonInvalidRow, "schema_version is 0"},
		"attempts":          {func(m *outbox.Message) { m.Attempts = -1 }, outbox.ReasonInvalidRow, "attempts is -1"},
		"max_attempts":      {func(m *outbox.Message) { m.MaxAttempts = new(-1) }, outbox.ReasonInvalidRow, "max_attempts is -1"},
		"255 bytes":         {func(m *outbox.Message) { m.RoutingKey, m.Exchange = long[1:], new(long[1:]) }, "", ""},
		"long routing key":  {func(m *outbox.Message) { m.RoutingKey = long }, outbox.ReasonInvalidRouting, "routing_key is longer than 255 bytes"},
		"long exchange":     {func(m *outbox.Message) { m.Exchange = &long }, outbox.ReasonInvalidRouting, "exchange is longer than 255 bytes"},
		"objects":           {func(m *outbox.Message) { m.Headers, m.Properties = []byte(" {"), []byte("{}") }, "", ""},
		"array":             {func(m *outbox.Message) { m.Headers = []byte("[1]") }, outbox.ReasonInvalidHeaders, "not JSON array"},
		"null":              {func(m *outbox.Message) { m.Headers = []byte("null") }, outbox.ReasonInvalidHeaders, "not JSON null"},
		"string":            {func(m *outbox.Message) { m.Properties = []byte(`"a"`) }, outbox.ReasonInvalidProperties, "not JSON string"},
		"number":            {func(m *outbox.Message) { m.Properties = []byte("-1") }, outbox.ReasonInvalidProperties, "not JSON number"},
		"boolean":           {func(m *outbox.Message) { m.Properties = []byte("\ttrue") }, outbox.ReasonInvalidProperties, "not JSON bool"},
		"large headers":     {func(m *outbox.Message) { m.Fits("headers", outbox.MostHeaderBytes+1) }, outbox.ReasonInvalidHeaders, "headers is too large"},
		"large properties":  {func(m *outbox.Message) { m.Fits("properties", 1<<40) }, outbox.ReasonInvalidProperties, "properties is too large"},
		"large exchange":    {func(m *outbox.Message) { m.Fits("exchange", 1<<30) }, outbox.ReasonInvalidRouting, "exchange is too large"},
		"large column":      {func(m *outbox.Message) { m.Fits("tenant", 1<<30) }, outbox.ReasonInvalidHeaders, "tenant is too large"},
		"largest headers":   {func(m *outbox.Message) { m.Fits("headers", outbox.MostHeaderBytes) }, "", ""},
		"unreadable":        {func(m *outbox.Message) { m.Unreadable = "22P05" }, outbox.ReasonInvalidRow, "cannot send the row: 22P05"},
		"large and expired": {func(m *outbox.Message) { m.Deadline = after(-time.Hour); m.Fits("headers", 1<<30) }, outbox.ReasonInvalidHeaders, ""},
	} {
		m := &outbox.Message{Row: outbox.Row{RoutingKey: "r", Payload: []byte("1"), SchemaVersion: 1}}
		c.change(m)
		if reason, detail := m.Defect(now); reason != c.reason || !strings.Contains(detail, c.says) || (reason == "") != (detail == "") {
			t.Errorf("%s: %q, %q", name, reason, detail)
		}
	}
}
