package main

import "testing"

// Requeued dead letters can have negative ids.
func TestCommandsAcceptNegativeIDs(t *testing.T) {
	env, conn := fresh(t)
	want(t, cdcRelay(t, env, "setup", "--mode", "poll"), exitDone)
	execute(t, conn, `INSERT INTO outbox (id, routing_key, payload) OVERRIDING SYSTEM VALUE VALUES (-7, 'k', '{}')`)
	execute(t, conn, `INSERT INTO outbox_dead_letter (id, message_id, created_at, attempts, schema_version, routing_key, payload, failure_reason)
		VALUES (-5, gen_random_uuid(), now(), 6, 1, 'k', '{}', 'nack')`)
	for _, args := range [][]string{{"explain", "-7"}, {"explain", "--", "-7"}, {"explain", "--payload", "-7", "--mode", "poll"}} {
		wantOutput(t, cdcRelay(t, env, args...), "id               -7")
	}
	wantOutput(t, cdcRelay(t, env, "explain", "-5"), "id", "-5")
	wantOutput(t, cdcRelay(t, env, "list", "--state", "dead", "--id", "-5"), "-5")
	wantOutput(t, cdcRelay(t, env, "resend", "--state", "dead", "--dry-run", "-5", "-6"), "would requeue 1 dead letter")
	wantUsage(t, cdcRelay(t, env, "stats", "--top", "-5"), `--top: -5: want 0 to 10000`)
}
