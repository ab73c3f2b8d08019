package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestPeekShowsMessagesAsTheyWouldBeSent(t *testing.T) {
	env, conn := fresh(t)
	want(t, cdcRelay(t, env, "setup", "--mode", "poll"), exitDone)
	wantOutput(t, cdcRelay(t, env, "peek"), "no messages")
	wantJSON(t, cdcRelay(t, env, "peek", "--json"), exitDone, map[string]any{"messages": []any{}, "next": nil})
	execute(t, conn, `ALTER TABLE outbox ADD tenant text`)
	execute(t, conn, `INSERT INTO outbox (message_id, exchange, routing_key, ordering_key, payload, payload_bytes, headers, properties, redacted_payload, created_at, tenant) VALUES
		('00000000-0000-4000-8000-000000000001', NULL, 'orders.created', 'c7', '{"n": 1}', NULL, '{"h": 1}', '{"priority": 3}', NULL, '2026-01-01Z', 'acme'),
		('00000000-0000-4000-8000-000000000002', 'x', 'b', NULL, NULL, '\x00ff', NULL, NULL, NULL, '99999-01-01Z', NULL),
		('00000000-0000-4000-8000-000000000003', 'x', 'secret', NULL, '"s3cr3t"', NULL, NULL, NULL, '"***"', '2026-01-01Z', NULL),
		('00000000-0000-4000-8000-000000000004', 'x', 'empty', NULL, NULL, NULL, NULL, NULL, NULL, '2026-01-01Z', NULL)`)
	env["CDC_RELAY_EXCHANGE"] = "shop"
	peek := []string{"peek", "--header-columns", "tenant", "--ordering-key-header", "x-key"}
	r := cdcRelay(t, env, append(peek, "--json")...)
	want(t, r, exitDone)
	var got struct {
		Messages []json.RawMessage
		Next     *string
	}
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || got.Next != nil {
		t.Fatalf("%v\n%s", err, r.stdout)
	}
	wanted := []string{
		`{"state":"waiting","available_at":null,"error":null,"id":1,"message_id":"00000000-0000-4000-8000-000000000001","exchange":"shop","routing_key":"orders.created","ordering_key":"c7","headers":{"h":1,"tenant":"acme","x-key":"c7"},"properties":{"priority":3},"created_at":"2026-01-01T00:00:00Z","possible_duplicate":false,"payload":{"n":1},"payload_base64":null}`,
		`{"state":"waiting","available_at":null,"error":null,"id":2,"message_id":"00000000-0000-4000-8000-000000000002","exchange":"x","routing_key":"b","ordering_key":null,"headers":null,"properties":null,"created_at":"9999-12-31T23:59:59Z","possible_duplicate":false,"payload":null,"payload_base64":"AP8="}`,
		`{"state":"waiting","available_at":null,"error":null,"id":3,"message_id":"00000000-0000-4000-8000-000000000003","exchange":"x","routing_key":"secret","ordering_key":null,"headers":null,"properties":null,"created_at":"2026-01-01T00:00:00Z","possible_duplicate":false,"payload":"***","payload_base64":null}`,
		`{"state":"waiting","available_at":null,"error":"payload and payload_bytes are both null: set one of them","id":4,"message_id":"00000000-0000-4000-8000-000000000004","exchange":"x","routing_key":"empty","ordering_key":null,"headers":null,"properties":null,"created_at":"2026-01-01T00:00:00Z","possible_duplicate":false,"payload":null,"payload_base64":null}`,
	}
	if len(got.Messages) != len(wanted) {
		t.Fatalf("%d messages: %s", len(got.Messages), r.stdout)
	}
	for i, m := range got.Messages {
		if line := compact(t, m); line != wanted[i] {
			t.Errorf("got  %s\nwant %s", line, wanted[i])
		}
	}
	wantOutput(t, cdcRelay(t, env, peek...), "ROUTING KEY", "orders.created", "shop", "both null")
	wantOutput(t, cdcRelay(t, env, "peek", "--limit", "1"), "… more: --after ")
	if r := cdcRelay(t, env, "peek", "--exchange", "x"); strings.Contains(r.stdout, "orders.created") || !strings.Contains(r.stdout, "secret") {
		t.Errorf("the filter picks %s", r.stdout)
	}
	if r := cdcRelay(t, env, "peek"); strings.Contains(r.stdout, "s3cr3t") {
		t.Errorf("the table has a body: %s", r.stdout)
	}
	want(t, cdcRelay(t, env, "peek", "--after", "17"), exitUsage)
	for column, text := range map[string]string{"region": "has no column region", "created_on": "is date, which --header-columns cannot send"} {
		execute(t, conn, `ALTER TABLE outbox ADD IF NOT EXISTS created_on date`)
		if r := cdcRelay(t, env, "peek", "--header-columns", column); r.code != exitFailed || !strings.Contains(r.stderr, text) {
			t.Errorf("%s: exit code %d, %s", column, r.code, r.stderr)
		}
	}
	if n := query[int](t, conn, `SELECT count(*) FROM outbox WHERE xmax = '0' AND possible_duplicate IS NULL`); n != 4 {
		t.Errorf("%d rows are unchanged, want 4", n)
	}
}

func compact(t *testing.T, text []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
