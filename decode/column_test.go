package decode_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/decode"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func date(s string) time.Time {
	d, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return d.UTC()
}

func uuid(s string) outbox.UUID {
	u, err := outbox.ParseUUID([]byte(s))
	if err != nil {
		panic(err)
	}
	return u
}

func TestEveryColumnIsReadInTextAndBinary(t *testing.T) {
	for _, c := range []struct {
		column string
		cell   cell
		want   func(m *outbox.Message) bool
	}{
		{"id", text("-9223372036854775808"), func(m *outbox.Message) bool { return m.ID == -1<<63 }},
		{"id", text("9223372036854775807"), func(m *outbox.Message) bool { return m.ID == 1<<63-1 }},
		{"id", binhex("7fff ffff ffff ffff"), func(m *outbox.Message) bool { return m.ID == 1<<63-1 }},
		{"id", binhex("ffff ffff ffff ffff"), func(m *outbox.Message) bool { return m.ID == -1 }},
		{"id", binhex("ffff fffe"), func(m *outbox.Message) bool { return m.ID == -2 }}, // an integer column
		{"message_id", text("ffeeddcc-bbaa-9988-7766-554433221100"), func(m *outbox.Message) bool {
			return m.MessageID == uuid("ffeeddcc-bbaa-9988-7766-554433221100")
		}},
		{"message_id", binhex("ffeeddcc bbaa 9988 7766 554433221100"), func(m *outbox.Message) bool {
			return m.MessageID == uuid("ffeeddcc-bbaa-9988-7766-554433221100")
		}},
		{"attempts", text("3"), func(m *outbox.Message) bool { return m.Attempts == 3 }},
		{"attempts", binhex("7fff ffff"), func(m *outbox.Message) bool { return m.Attempts == 1<<31-1 }},
		{"max_attempts", text("0"), func(m *outbox.Message) bool { return m.MaxAttempts != nil && *m.MaxAttempts == 0 }},
		{"max_attempts", binhex("7fff"), func(m *outbox.Message) bool { return *m.MaxAttempts == 1<<15-1 }},
		{"max_attempts", null(), func(m *outbox.Message) bool { return m.MaxAttempts == nil }},
		{"expires_at", text("infinity"), func(m *outbox.Message) bool { return m.ExpiresAt.Year() > 290_000 }},
		{"expires_at", binhex("0000000000000000"), func(m *outbox.Message) bool { return m.ExpiresAt.Unix() == 946_684_800 }},
		{"expires_at", null(), func(m *outbox.Message) bool { return m.ExpiresAt == nil }},
		{"schema_version", text("7"), func(m *outbox.Message) bool { return m.SchemaVersion == 7 }},
		{"schema_version", binhex("7fff"), func(m *outbox.Message) bool { return m.SchemaVersion == 1<<15-1 }},
		{"possible_duplicate", text("t"), func(m *outbox.Message) bool { return m.PossibleDuplicate }},
		{"possible_duplicate", text("f"), func(m *outbox.Message) bool { return !m.PossibleDuplicate }},
		{"possible_duplicate", binhex("01"), func(m *outbox.Message) bool { return m.PossibleDuplicate }},
		{"possible_duplicate", binhex("00"), func(m *outbox.Message) bool { return !m.PossibleDuplicate }},
		{"possible_duplicate", null(), func(m *outbox.Message) bool { return !m.PossibleDuplicate }},
		{"exchange", text(""), func(m *outbox.Message) bool { return m.Exchange != nil && *m.Exchange == "" }},
		{"exchange", binval("ex"), func(m *outbox.Message) bool { return *m.Exchange == "ex" }},
		{"exchange", null(), func(m *outbox.Message) bool { return m.Exchange == nil }},
		{"routing_key", text(""), func(m *outbox.Message) bool { return m.RoutingKey == "" }},
		{"routing_key", binval("ключ"), func(m *outbox.Message) bool { return m.RoutingKey == "ключ" }},
		{"routing_key", text(strings.Repeat("k", 5000)), func(m *outbox.Message) bool { return len(m.RoutingKey) == 5000 }},
		{"ordering_key", text(""), func(m *outbox.Message) bool { return m.OrderingKey != nil && *m.OrderingKey == "" }},
		{"ordering_key", binval("k"), func(m *outbox.Message) bool { return *m.OrderingKey == "k" }},
		{"ordering_key", null(), func(m *outbox.Message) bool { return m.OrderingKey == nil }},
		{"payload", text(" [1,\n1] "), func(m *outbox.Message) bool { return string(m.Payload) == " [1,\n1] " && !m.Binary }},
		{"payload", binval(`{"a":1, "a":2}`), func(m *outbox.Message) bool { return string(m.Payload) == `{"a":1, "a":2}` }},
		{"payload", binval("\x01[1]"), func(m *outbox.Message) bool { return string(m.Payload) == "[1]" }}, // somebody made it jsonb
		{"headers", text(`{"h": 1}`), func(m *outbox.Message) bool { return string(m.Headers) == `{"h": 1}` }},
		{"headers", binval("\x01" + `{"h": 1}`), func(m *outbox.Message) bool { return string(m.Headers) == `{"h": 1}` }},
		{"headers", null(), func(m *outbox.Message) bool { return m.Headers == nil }},
		{"properties", binval("\x01{}"), func(m *outbox.Message) bool { return string(m.Properties) == "{}" }},
		{"properties", null(), func(m *outbox.Message) bool { return m.Properties == nil }},
		{"created_at", text("1999-12-31 23:59:59+00"), func(m *outbox.Message) bool {
			return m.CreatedAt.Equal(date("1999-12-31T23:59:59Z"))
		}},
		{"created_at", text("2026-07-01 12:00:00.5+05:30"), func(m *outbox.Message) bool {
			return m.CreatedAt.Equal(date("2026-07-01T06:30:00.5Z"))
		}},
		{"created_at", binhex("ffff ffff ffff ffff"), func(m *outbox.Message) bool {
			return m.CreatedAt.Equal(date("1999-12-31T23:59:59.999999Z"))
		}},
		{"available_at", binhex("0000 0000 0000 0001"), func(m *outbox.Message) bool {
			return m.AvailableAt.Equal(date("2000-01-01T00:00:00.000001Z"))
		}},
		{"available_at", binhex("ff1f e2ff c59c 6000"), func(m *outbox.Message) bool { return m.AvailableAt != nil && m.AvailableAt.IsZero() }},
		{"expires_at", text("0001-01-01 00:00:00+00"), func(m *outbox.Message) bool { return m.ExpiresAt != nil && m.ExpiresAt.IsZero() }},
		{"expires_at", text("0001-01-01 00:17:30+00:17:30"), func(m *outbox.Message) bool { return m.ExpiresAt.IsZero() }},
		{"expires_at", text("0001-02-29 00:00:00.5+00 BC"), func(m *outbox.Message) bool {
			return m.ExpiresAt.Equal(time.Date(0, 2, 29, 0, 0, 0, 500_000_000, time.UTC))
		}},
		{"expires_at", text("4713-01-01 00:00:00+00 BC"), func(m *outbox.Message) bool { return m.ExpiresAt.Year() == -4712 }},
		{"available_at", text("294276-12-31 23:59:59.999999+00"), func(m *outbox.Message) bool {
			return m.AvailableAt.Equal(time.Date(294276, 12, 31, 23, 59, 59, 999_999_000, time.UTC))
		}},
		{"available_at", null(), func(m *outbox.Message) bool { return m.AvailableAt == nil }},
		{"available_at", text("infinity"), func(m *outbox.Message) bool { return m.AvailableAt.Year() > 290_000 }},
		{"available_at", binhex("7fff ffff ffff ffff"), func(m *outbox.Message) bool { return m.AvailableAt.Year() > 290_000 }},
		{"available_at", text("-infinity"), func(m *outbox.Message) bool {
			return m.AvailableAt != nil && m.AvailableAt.Year() < -4000
		}},
		{"available_at", binhex("8000 0000 0000 0000"), func(m *outbox.Message) bool {
			return m.AvailableAt != nil && m.AvailableAt.Year() < -4000
		}},
	} {
		if m := feed(t, ready(t), insertRow(with(c.column, c.cell))).Message; !c.want(m) {
			t.Errorf("%s = %c %q: %+v", c.column, c.cell.kind, c.cell.data, m)
		}
	}
}

// A value that can never fit into a frame, or that a sweep must read, is not copied, in either form.
func TestOversizeValuesAreNotCopied(t *testing.T) {
	large := strings.Repeat("x", 32<<20)
	for _, c := range []struct {
		column string
		cell   cell
		want   string
	}{
		{"headers", text(large), "headers"},
		{"headers", binval("\x01" + large), "headers"},
		{"properties", text(large), "properties"},
		{"properties", binval("\x01" + large), "properties"},
		{"properties", text(large[:outbox.MostHeaderBytes+1]), "properties"},
		{"headers", text(large[:outbox.MostHeaderBytes]), ""},
		{"exchange", text(large), "exchange"},
		{"routing_key", text(large), "routing_key"},
		{"routing_key", text(large[:outbox.MostHeaderBytes]), ""},
		{"payload", text(large), ""},
		{"payload", text(large + "x"), "payload"},
		{"payload_bytes", binval(large + "x"), "payload"},
		{"payload_bytes", text(`\x` + large), "payload"},
	} {
		r, d := with(c.column, c.cell), ready(t)
		row := insertRow(r)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		m := feed(t, d, row).Message
		runtime.ReadMemStats(&after)
		if m.Unread > 0 {
			m.Oversize = "payload"
		}
		if m.Oversize != c.want {
			t.Errorf("%s of %d bytes: oversize is %q, want %q", c.column, len(c.cell.data), m.Oversize, c.want)
		}
		if copied := after.TotalAlloc - before.TotalAlloc; c.want != "" && copied > 1<<20 {
			t.Errorf("%s of %d bytes: %d bytes were allocated", c.column, len(c.cell.data), copied)
		}
	}
}

func TestBinaryBodyIsDistinguishedFromJSON(t *testing.T) {
	for _, c := range []struct {
		cell cell
		want string
	}{
		{text(`\x00ff7b`), "\x00\xff{"}, {text(`\x`), ""}, {binval("\x00\xff{"), "\x00\xff{"}, {binval(""), ""}, {binval("\x01[1]"), "\x01[1]"},
	} {
		r := with("payload", null())
		r["payload_bytes"] = c.cell
		m := feed(t, ready(t), insertRow(r)).Message
		if !m.Binary || m.Payload == nil || string(m.Payload) != c.want {
			t.Errorf("%c %q: %+v", c.cell.kind, c.cell.data, m)
		}
	}
}

func TestRowErrorNamesTheColumnAndDoesNotEndTheStream(t *testing.T) {
	for _, c := range []struct {
		column string
		cell   cell
	}{
		{"id", text("1e3")},
		{"id", text("9223372036854775808")},
		{"id", binhex("010203")},
		{"id", null()},
		{"message_id", text("00112233445566778899aabbccddeeff")},
		{"message_id", text("g0112233-4455-6677-8899-aabbccddeeff")},
		{"message_id", binhex("0011")},
		{"message_id", null()},
		{"created_at", text("yesterday")},
		{"created_at", text("02/01/2026 03:04:05")},
		{"created_at", binhex("00")},
		{"created_at", null()},
		{"attempts", text("")},
		{"attempts", binval("")},
		{"attempts", null()},
		{"schema_version", null()},
		{"schema_version", text("x")},
		{"routing_key", null()},
		{"possible_duplicate", text("true")},
		{"possible_duplicate", binhex("02")},
		{"payload_bytes", text("secret")},
		{"payload_bytes", text(`\xabc`)},
		{"payload_bytes", text(`\xzz`)},
		{"payload", unchanged()},
		{"exchange", unchanged()},
		{"headers", unchanged()},
		{"available_at", text("")},
	} {
		d := ready(t)
		_, err := d.Decode(insertRow(with(c.column, c.cell)))
		var wrong *decode.RowError
		if !errors.As(err, &wrong) {
			t.Errorf("%s = %c %q: err = %v", c.column, c.cell.kind, c.cell.data, err)
			continue
		}
		named := wrong.Column == c.column && strings.Contains(err.Error(), c.column) && errors.Unwrap(err) != nil
		if !named || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s = %c %q: %v", c.column, c.cell.kind, c.cell.data, err)
		}
		if c.column != "id" && wrong.Ref.ID != 42 {
			t.Errorf("%s: row %d", c.column, wrong.Ref.ID)
		}
		if c.column != "message_id" && wrong.Ref.MessageID != uuid("00112233-4455-6677-8899-aabbccddeeff") {
			t.Errorf("%s: message %s", c.column, wrong.Ref.MessageID)
		}
		if e := feed(t, d, insertRow(row())); e.Kind != decode.Insert {
			t.Errorf("after %s: %+v", c.column, e)
		}
	}
}
