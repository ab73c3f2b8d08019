package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestListAndKeysFilterAndPage(t *testing.T) {
	env, conn := withTables(t, "--mode", "poll")
	wantOutput(t, cdcRelay(t, env, "list"), "no messages")
	wantOutput(t, cdcRelay(t, env, "keys"), "no ordering keys")
	execute(t, conn, `INSERT INTO outbox (routing_key, payload, ordering_key, available_at, attempts, last_error) VALUES
		('orders.created', '1', 'customer-1', now() + interval '1 hour', 2, 'unroutable: NO_ROUTE'), ('orders.paid', '1', 'customer-1', NULL, 0, NULL),
		('orders.paid', '1', 'customer-2', NULL, 0, NULL)`)
	wantOutput(t, cdcRelay(t, env, "list"), "ROUTING KEY", "retrying", "in 59m", "customer-1", "unroutable: NO_ROUTE")
	wantOutput(t, cdcRelay(t, env, "keys"), "customer-1    1       1", "customer-2    0       3", "it is tried again")
	if r := cdcRelay(t, env, "keys", "--blocked"); !strings.Contains(r.stdout, "customer-1") || strings.Contains(r.stdout, "customer-2") {
		t.Errorf("got %s", r.stdout)
	}

	wantOutput(t, cdcRelay(t, env, "stats", "--json"), `"blocked_keys": 1`)
	wantOutput(t, cdcRelay(t, env, "list", "--newer-than", "2024-11-01"), "customer-2")
	wantOutput(t, cdcRelay(t, env, "list", "--older-than", "2024-11-01"), "no messages")
	var page struct {
		Messages []struct{ State string }
		Next     string
	}
	paid := []string{"list", "--routing-key", "orders.paid", "--limit", "1", "--json"}
	for _, state := range []string{"blocked", "waiting"} {
		r := cdcRelay(t, env, append(paid, "--after="+page.Next)...)
		if err := json.Unmarshal([]byte(r.stdout), &page); err != nil || len(page.Messages) != 1 || page.Messages[0].State != state {
			t.Fatalf("want one %s message: %v, %+v", state, err, r)
		}
	}
	for _, args := range [][]string{{"list", "--after", "17"}, {"list", "--state", "claimed"}, {"keys", "--limit", "0"}, {"list", "--state", "dead", "--after", "x"}} {
		want(t, cdcRelay(t, env, args...), exitUsage)
	}
}

// A page reads 10,000 rows, so only the third page has the row.
func TestListFindsARareRow(t *testing.T) {
	env, conn := withTables(t, "--mode", "poll")
	execute(t, conn, `INSERT INTO outbox (routing_key, payload) SELECT 'orders.paid', '1' FROM generate_series(1, 25000)`)
	execute(t, conn, `INSERT INTO outbox (routing_key, payload) VALUES ('orders.lost', '1')`)
	wantOutput(t, cdcRelay(t, env, "list", "--routing-key", "orders.lost"), "orders.lost")
	wantOutput(t, cdcRelay(t, env, "list", "--routing-key", "orders.none"), "no messages")
}

func TestExplainNamesTheSessionThatLocksARow(t *testing.T) {
	env, conn := withTables(t, "--mode", "poll")
	execute(t, conn, `INSERT INTO outbox (routing_key, payload, ordering_key) VALUES ('a', '1', 'k'), ('b', '1', 'k')`)
	execute(t, conn, `SET application_name = 'nightly job'`)
	execute(t, conn, `BEGIN`)
	execute(t, conn, `SELECT FROM outbox WHERE id = 1 FOR UPDATE`)
	defer execute(t, conn, `ROLLBACK`)
	for _, id := range []string{"1", "2"} { // the second waits for the first
		wantOutput(t, cdcRelay(t, env, "explain", id), "is locked by nightly job, Postgres process ", " from 127.0.0.1:", ", for ")
		wantOutput(t, cdcRelay(t, env, "explain", id, "--json"), `"application": "nightly job"`)
	}
	wantOutput(t, cdcRelay(t, env, "list", "--state", "locked"), "locked")
	execute(t, conn, `UPDATE outbox SET schema_version = 7 WHERE id = 1`)
	execute(t, conn, `COMMIT`)
	wantOutput(t, cdcRelay(t, env, "list", "--state", "newer_version"), "newer version")
	wantOutput(t, cdcRelay(t, env, "stats"), "1, for a newer relay")
	execute(t, conn, `BEGIN`)
}

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
	found := cdcRelay(t, env, "list", "--id", "-7,-5")
	if wantOutput(t, found, "\n-7  ", "\n-5  ", " waiting ", " dead "); strings.Count(found.stdout, "\n") != 3 {
		t.Errorf("got %s", found.stdout)
	}
	want(t, cdcRelay(t, env, "list", "--id", "8"), exitNotFound)
	wantOutput(t, cdcRelay(t, env, "resend", "--state", "dead", "--dry-run", "-5", "-6"), "would resend 1 dead letter")
	wantUsage(t, cdcRelay(t, env, "stats", "--top", "-5"), `--top: -5: want 0 to 10000`)
}

// An application can set created_at to any time of Postgres.
func TestCommandsShowTimesBeyondTheRangeOfGo(t *testing.T) {
	t.Parallel()
	env, conn := withTables(t, "--mode", "poll")
	for id, at := range []string{"now() + interval '300 years'", "'infinity'", "'-infinity'", "'12000-01-01'", "'0044-03-15 BC'", "'0001-01-01 00:00:00+00'"} {
		execute(t, conn, fmt.Sprintf(`INSERT INTO outbox (id, routing_key, payload, created_at, available_at, expires_at) VALUES (%d, 'k', '1', %[2]s, %[2]s, %[2]s)`, id+1, at))
		execute(t, conn, fmt.Sprintf(`INSERT INTO outbox_dead_letter (id, message_id, created_at, attempts, schema_version, routing_key, payload, failure_reason)
			VALUES (%d, gen_random_uuid(), %s, 6, 1, 'k', '{}', 'nack')`, id+11, at))
		for _, format := range []string{"--json=false", "--json"} {
			wantOutput(t, cdcRelay(t, env, "explain", fmt.Sprint(id+1), format), "created", "expire")
			wantOutput(t, cdcRelay(t, env, "explain", fmt.Sprint(id+11), format), "created")
		}
	}
	for _, command := range []string{"list", "explain 6", "list --state scheduled"} {
		out := cdcRelay(t, env, append(strings.Fields(command), "--json")...)
		if null := `"available_at": null`; strings.Contains(out.stdout, null) || strings.Contains(out.stdout, `"expires_at": null`) {
			t.Errorf("%s shows null for a time:\n%s", command, out.stdout)
		}
	}
	wantOutput(t, cdcRelay(t, env, "list", "--state", "dead", "--json"), `"created_at": "9999-12-31T23:59:59Z"`, `"created_at": "0001-01-01T00:00:00Z"`)
}

// A script that gets exit code 0 would assume success.
func TestAMissingMessageHasItsOwnExitCode(t *testing.T) {
	t.Parallel()
	env, conn := withTables(t, "--mode", "poll")
	execute(t, conn, `INSERT INTO outbox_dead_letter (id, message_id, created_at, attempts, schema_version, routing_key, payload, failure_reason)
		VALUES (1, gen_random_uuid(), now(), 6, 1, 'k', '{}', 'of_a_custom_publisher')`)
	for _, test := range []struct {
		args string
		code int
		says string
	}{
		{"resend --state dead 999999999", exitNotFound, "no dead letter has one of these IDs"},
		{"delete --state dead 999999999 --yes", exitNotFound, "no dead letter has one of these IDs"},
		{"resend --state retrying 999999999", exitNotFound, "no waiting retry has one of these IDs"},
		{"explain 999999999", exitNotFound, "999999999 is neither in public.outbox nor"},
		{"explain 00000000-0000-4000-8000-000000000000 --json", exitNotFound, "is neither in public.outbox nor"},
		{"list --reason bogus", exitUsage, `no message has "bogus"; the codes are nack, unroutable, `},
		{"delete --state due --reason bogus --yes", exitUsage, `no due message has "bogus"`},
		{"list --state dead --reason bogus", exitUsage, `no dead letter has "bogus"; the codes are nack, unroutable, `},
		{"resend --state dead --reason bogus", exitUsage, `no dead letter has "bogus"`},
		{"list --state dead --reason nack", exitDone, ""},
		{"list --state dead --reason of_a_custom_publisher", exitDone, ""},
		{"resend --state dead 1 999999999", exitDone, ""},
	} {
		r := cdcRelay(t, env, strings.Fields(test.args)...)
		empty := r.code == exitNotFound && strings.HasPrefix(test.args, "explain") && strings.Contains(test.args, "--json")
		if r.code != test.code || !strings.Contains(r.stderr, test.says) || empty && !strings.Contains(r.stdout, `"messages": []`) {
			t.Errorf("%s: exit code %d, want %d\n%s%s", test.args, r.code, test.code, r.stdout, r.stderr)
		}
	}
}
