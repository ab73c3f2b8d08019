package main

import (
	"strings"
	"testing"
)

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
		{"resend --state dead 999999999 --dry-run", exitNotFound, "no dead letter has one of these IDs"},
		{"resend --state dead 999999999 --format json", exitNotFound, "no dead letter has one of these IDs"},
		{"delete --state dead 999999999 --yes", exitNotFound, "no dead letter has one of these IDs"},
		{"resend --state retrying 999999999", exitNotFound, "no waiting retry has one of these IDs"},
		{"resend --state retrying 999999999 --json", exitNotFound, "no waiting retry has one of these IDs"},
		{"explain 999999999", exitNotFound, "999999999 is neither in public.outbox nor"},
		{"explain 00000000-0000-4000-8000-000000000000 --json", exitNotFound, "is neither in public.outbox nor"},
		{"list --reason bogus", exitUsage, `no message of the outbox has "bogus"; the codes are nack, unroutable, `},
		{"list --reason unroutable", exitDone, ""},
		{"delete --state due --reason bogus --yes", exitUsage, `no due message has "bogus"`},
		{"delete --state due 999999999 --yes", exitNotFound, "no due message has one of these IDs"},
		{"list --state dead --reason bogus", exitUsage, `no dead letter has "bogus"; the codes are nack, unroutable, `},
		{"resend --state dead --reason bogus", exitUsage, `no dead letter has "bogus"`},
		{"delete --state dead --reason bogus --yes", exitUsage, `no dead letter has "bogus"`},
		{"resend --state retrying --reason bogus", exitUsage, `no waiting retry has "bogus"`},
		{"list --state dead --reason nack", exitDone, ""},
		{"resend --state dead --reason nack", exitDone, ""},
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
