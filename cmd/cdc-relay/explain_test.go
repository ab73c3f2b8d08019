package main

import (
	"fmt"
	"strings"
	"testing"
)

// An application can set created_at to any time of Postgres.
func TestCommandsShowTimesBeyondTheRangeOfGo(t *testing.T) {
	t.Parallel()
	env, conn := withTables(t, "--mode", "poll")
	for id, at := range []string{"now() + interval '300 years'", "'infinity'", "'-infinity'", "'12000-01-01'", "'0044-03-15 BC'", "'0001-01-01 00:00:00+00'"} {
		execute(t, conn, fmt.Sprintf(`INSERT INTO outbox (id, routing_key, payload, created_at, available_at, expires_at) VALUES (%d, 'k', '1', %[2]s, %[2]s, %[2]s)`, id+1, at))
		execute(t, conn, fmt.Sprintf(`INSERT INTO outbox_dead_letter (id, message_id, created_at, attempts, schema_version, routing_key, payload, failure_reason)
			VALUES (%d, gen_random_uuid(), %s, 6, 1, 'k', '{}', 'nack')`, id+11, at))
		for _, format := range []string{"table", "json"} {
			wantOutput(t, cdcRelay(t, env, "explain", fmt.Sprint(id+1), "--format", format), "created", "expire")
			wantOutput(t, cdcRelay(t, env, "explain", fmt.Sprint(id+11), "--format", format), "created")
		}
	}
	for _, command := range []string{"list", "explain 6", "list --state scheduled"} {
		out := cdcRelay(t, env, append(strings.Fields(command), "--format", "json")...)
		if null := `"available_at": null`; strings.Contains(out.stdout, null) || strings.Contains(out.stdout, `"expires_at": null`) {
			t.Errorf("%s shows null for a time:\n%s", command, out.stdout)
		}
	}
	wantOutput(t, cdcRelay(t, env, "list", "--state", "dead", "--format", "json"), `"created_at": "9999-12-31T23:59:59Z"`, `"created_at": "0001-01-01T00:00:00Z"`)
}
