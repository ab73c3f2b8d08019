package main

import "testing"

// Requeued dead letters can have negative ids.
func TestCommandsAcceptNegativeIDs(t *testing.T) {
	env, conn := withTables(t, "--mode", "poll")
	execute(t, conn, `INSERT INTO outbox (id, routing_key, payload) OVERRIDING SYSTEM VALUE VALUES (-7, 'k', '{}')`)
	execute(t, conn, insertDead, -5, uuid(5), nil)
	for _, args := range [][]string{{"explain", "-7"}, {"explain", "--", "-7"}, {"explain", "--payload", "-7", "--mode", "poll"}} {
		wantOutput(t, cdcRelay(t, env, args...), "id               -7")
	}
	wantOutput(t, cdcRelay(t, env, "explain", "-5"), "id", "-5")
	wantOutput(t, cdcRelay(t, env, "list", "--state", "dead", "--id", "-5"), "-5")
	wantOutput(t, cdcRelay(t, env, "resend", "--state", "dead", "--dry-run", "-5", "-6"), "would resend 1 dead letter")
	wantUsage(t, cdcRelay(t, env, "stats", "--top", "-5"), `--top: -5: want 0 to 10000`)
}
