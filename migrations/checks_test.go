package migrations_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/services"
)

// wantCheck: "" means that the row is taken.
func wantCheck(t *testing.T, err error, constraint string) {
	t.Helper()
	var pgErr *pgconn.PgError
	errors.As(err, &pgErr)
	switch {
	case constraint == "" && err != nil:
		t.Errorf("refused: %v", err)
	case constraint == "":
	case pgErr == nil:
		t.Errorf("got %v, want a violation of %s", err, constraint)
	case pgErr.Code != "23514" || pgErr.ConstraintName != constraint:
		t.Errorf("got %s %s (%s), want a violation of %s", pgErr.Code, pgErr.ConstraintName, pgErr.Message, constraint)
	}
}

func TestChecks(t *testing.T) {
	conn := connect(t, services.Database(t))
	up(t, conn, plainTable())
	const payload = "outbox_needs_payload_or_payload_bytes_and_not_both"
	for _, test := range []struct{ columns, values, constraint string }{
		{"routing_key, payload", "'k', '{}'", ""},
		{"routing_key, payload", "'', 'null'", ""},
		{"routing_key, payload_bytes", "'k', ''", ""},
		{"routing_key", "'k'", payload},
		{"routing_key, payload", "'k', NULL", payload},
		{"routing_key, payload, payload_bytes", "'k', '{}', 'x'", payload},
		{"routing_key, payload", "repeat('k', 255), '1'", ""},
		{"routing_key, payload", "repeat('k', 256), '1'", "outbox_routing_key_at_most_255_bytes"},
		{"routing_key, payload", "repeat('é', 127), '1'", ""},
		{"routing_key, payload", "repeat('é', 128), '1'", "outbox_routing_key_at_most_255_bytes"},
		{"routing_key, payload, exchange", "'k', '1', ''", ""},
		{"routing_key, payload, exchange", "'k', '1', repeat('x', 255)", ""},
		{"routing_key, payload, exchange", "'k', '1', repeat('x', 256)", "outbox_exchange_at_most_255_bytes"},
		{"routing_key, payload, ordering_key", "'k', '1', repeat('x', 1024)", ""},
		{"routing_key, payload, ordering_key", "'k', '1', repeat('x', 1025)", "outbox_ordering_key_at_most_1024_bytes"},
		{"routing_key, payload, headers", `'k', '1', '{"a": {"b": [1]}}'`, ""},
		{"routing_key, payload, headers", `'k', '1', '[1]'`, "outbox_headers_is_a_json_object"},
		{"routing_key, payload, headers", `'k', '1', 'null'`, "outbox_headers_is_a_json_object"},
		{"routing_key, payload, attempts", "'k', '1', -1", "outbox_attempts_not_negative"},
		{"routing_key, payload, schema_version", "'k', '1', 0", "outbox_schema_version_at_least_1"},
		{"routing_key, payload, schema_version", "'k', '1', 7", ""},
		{"routing_key, payload, available_at, possible_duplicate, last_error, redacted_payload", "'k', '1', now(), true, 'x', '1'", ""},
	} {
		t.Run(test.values, func(t *testing.T) {
			_, err := conn.Exec(t.Context(), fmt.Sprintf("INSERT INTO outbox (%s) VALUES (%s)", test.columns, test.values))
			wantCheck(t, err, test.constraint)
		})
	}
}

func TestChecksOfProperties(t *testing.T) {
	conn := connect(t, services.Database(t))
	up(t, conn, plainTable())
	long := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	text := []string{`"x"`, `""`, long(255)}
	noText := []string{long(256), `"` + strings.Repeat("é", 128) + `"`, "1", "null", "{}", "[]", "true"}
	type values struct{ good, bad []string }
	all := map[string]values{
		"priority":      {[]string{"0", "255", "1e2"}, []string{"-1", "256", "1.5", `"1"`, "null", "true", "[]", "{}", "1e9"}},
		"delivery_mode": {[]string{"1", "2"}, []string{"0", "3", `"2"`, "2.0", "null", "true", "[2]"}},
		"expiration": {
			[]string{`"60000"`, "60000", "0", `"0"`, "4294967295", `"4294967295"`},
			[]string{"-1", `"-1"`, `"1 minute"`, `""`, "1.5", "4294967296", `"4294967296"`, "99999999999999999999", "null", "true", "[1]"},
		},
		"unknown":      {nil, []string{"1", `"x"`, "null"}},
		"Content_Type": {nil, []string{`"x"`}},
		"message_id":   {nil, []string{`"x"`}},
	}
	for _, name := range []string{"content_type", "content_encoding", "correlation_id", "reply_to", "type", "user_id", "app_id"} {
		all[name] = values{text, noText}
	}
	insert := func(properties string) error {
		_, err := conn.Exec(t.Context(), "INSERT INTO outbox (routing_key, payload, properties) VALUES ('k', '1', $1::text::jsonb)", properties)
		return err
	}
	for name, v := range all {
		t.Run(name, func(t *testing.T) {
			for _, good := range v.good {
				wantCheck(t, insert(fmt.Sprintf(`{%q: %s}`, name, good)), "")
			}
			for _, bad := range v.bad {
				err := insert(fmt.Sprintf(`{%q: %s}`, name, bad))
				wantCheck(t, err, "outbox_properties_valid")
				if err != nil && !strings.Contains(err.Error(), name) {
					t.Errorf("%s: %s: the message does not name the property: %v", name, bad, err)
				}
			}
		})
	}
	wantCheck(t, insert("{}"), "")
	wantCheck(t, insert(`{"type": "t", "priority": 3, "expiration": "5"}`), "")
	for _, bad := range []string{"[]", "null", "1", `"content_type"`, `["content_type"]`} {
		wantCheck(t, insert(bad), "outbox_properties_valid")
	}
}

func TestLengthsAreThoseOfUTF8WhateverTheEncodingOfTheDatabase(t *testing.T) {
	conn := connect(t, services.Database(t, "TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"))
	up(t, conn, plainTable())
	exec1(t, conn, "SET client_encoding = 'UTF8'")
	insert := func(column, value string) error {
		_, err := conn.Exec(t.Context(), "INSERT INTO outbox (routing_key, payload, "+column+") VALUES ('k', '1', $1::text)", value)
		return err
	}
	wantCheck(t, insert("exchange", strings.Repeat("é", 127)), "")
	wantCheck(t, insert("exchange", strings.Repeat("é", 128)), "outbox_exchange_at_most_255_bytes")
	_, err := conn.Exec(t.Context(), "INSERT INTO outbox (routing_key, payload, properties) VALUES ('k', '1', jsonb_build_object('type', repeat('é', 128)))")
	wantCheck(t, err, "outbox_properties_valid")
}
