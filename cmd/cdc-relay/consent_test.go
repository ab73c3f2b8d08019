package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Each command that sends or deletes asks, or needs --yes. A new command must decide, too.
func TestCommandsThatSendOrDeleteAskFirst(t *testing.T) {
	t.Parallel()
	asks := []string{"check", "delete", "resend", "teardown"}
	if got := takersOf("yes"); !slices.Equal(sorted(got), asks) {
		t.Errorf("commands with --yes: %q", got)
	}
	if got := takersOf("all"); !slices.Equal(sorted(got), []string{"delete", "resend"}) {
		t.Errorf("commands that change many rows: %q", got)
	}
	env, db := withTables(t, "--mode", "poll", "--keep-published", "1h")
	fill := func() {
		execute(t, db, `TRUNCATE outbox, outbox_dead_letter, outbox_published`)
		execute(t, db, `INSERT INTO outbox (routing_key, payload, available_at, attempts) VALUES ('r', '1', now() + interval '1 hour', 2)`)
		execute(t, db, `INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, payload, failure_reason)
			SELECT -i, now(), gen_random_uuid(), 6, 1, 'r', '1', 'nack' FROM generate_series(1, 3) i`)
		execute(t, db, `INSERT INTO outbox_published (id, created_at, published_at, message_id, attempts, schema_version, routing_key, payload)
			SELECT i, now(), now(), gen_random_uuid(), 0, 1, 'r', '1' FROM generate_series(1, 694) i`)
	}
	state := func() [3]int {
		return [3]int{
			query[int](t, db, `SELECT count(*)::int FROM outbox`), query[int](t, db, `SELECT count(*)::int FROM outbox_dead_letter`),
			query[int](t, db, `SELECT count(*)::int FROM outbox WHERE available_at <= clock_timestamp()`),
		}
	}
	before := [3]int{1, 3, 0}
	for _, test := range []struct {
		args     string
		question string // "": it does not ask
		after    [3]int
	}{
		{"resend --state published --all", "Send 694 messages of public.outbox_published again, at ", [3]int{695, 3, 694}},
		{"resend --state published 1", "Send 1 message of public.outbox_published again, at ", [3]int{2, 3, 1}},
		{"resend --state published --routing-key r --to-exchange e\x1b --format json", `Send 694 messages of public.outbox_published again to exchange "e\\x1b", at `, [3]int{695, 3, 694}},
		{"resend --state published --newer-than 1d --rate 1000000", "Send 694 messages", [3]int{695, 3, 694}},
		{"resend --state published --id 1,2 --after-id 1", "Send 1 message", [3]int{2, 3, 1}},
		{"delete --state dead --all", "Delete 3 dead letters from public.outbox_dead_letter at ", [3]int{1, 0, 0}},
		{"delete --state dead -- -1", "Delete 1 dead letter from ", [3]int{1, 2, 0}},
		{"delete --state dead --newer-than 1d --id -1,-2 --id -3", "Delete 3 dead letters from ", [3]int{1, 0, 0}},
		{"teardown --slot never_there", "Drop slot never_there and ", before},
		{"resend --state dead --all", "", [3]int{4, 0, 3}},
		{"resend --state dead --reason nack", "", [3]int{4, 0, 3}},
		{"resend --state retrying --all", "", [3]int{1, 3, 1}}, // they ask only on a terminal
		{"delete --state retrying --all", "Delete 1 retrying message from public.outbox at ", [3]int{0, 3, 0}},
	} {
		fill()
		args := strings.Fields(test.args)
		if test.question != "" {
			for _, answer := range []string{"", "yess\n"} {
				r := withInput(t, env, answer, args...)
				if r.code != exitFailed || state() != before || !strings.Contains(r.stdout+r.stderr, test.question) || !strings.Contains(r.stderr, "give --yes") || strings.Contains(r.stderr, "\x1b") {
					t.Errorf("%q with the answer %q: exit code %d, rows %v\n%s%s", args, answer, r.code, state(), r.stdout, r.stderr)
				}
			}
			if r := withInput(t, env, "y\n", args...); r.code != exitDone || state() != test.after {
				t.Errorf("%q with yes: exit code %d, rows %v, want %v\n%s%s", args, r.code, state(), test.after, r.stdout, r.stderr)
			}
			fill()
		}
		if slices.Contains(args, "--") {
			args = slices.Insert(args, slices.Index(args, "--"), "--yes")
		} else {
			args = append(args, "--yes")
		}
		r := cdcRelay(t, env, args...)
		if r.code != exitDone || state() != test.after || strings.Contains(r.stdout+r.stderr, "[y/N]") {
			t.Errorf("%q: exit code %d, rows %v, want %v\n%s%s", args, r.code, state(), test.after, r.stdout, r.stderr)
		}
	}
	fill()
	wantOutput(t, cdcRelay(t, env, "resend", "--state", "published", "--all", "--dry-run"), "would resend 694 messages")
	if state() != before {
		t.Errorf("a dry run changed rows: %v", state())
	}
}

func sorted(words []string) []string { return slices.Sorted(slices.Values(words)) }

func TestFiltersThatMatchNothingExplainWildcards(t *testing.T) {
	t.Parallel()
	env, db := withTables(t, "--mode", "poll", "--keep-published", "1h")
	execute(t, db, `INSERT INTO outbox (routing_key, payload) VALUES ('orders.created', '1'), ('a%', '1')`)
	for args, note := range map[string]string{
		"list --routing-key orders.%":                               `note: --routing-key: the % in "orders.%" is no wildcard; * is one word, # any number of words`,
		"list --routing-key ?.created --json":                       `note: --routing-key: the ? in "?.created" is no wildcard`,
		"list --exchange shop%":                                     `the % in "shop%" is no wildcard`,
		"list --ordering-key customer-?":                            `note: --ordering-key compares the whole text: the ? in "customer-?" is no wildcard`,
		"list --ordering-key customer.*":                            `the * in "customer.*" is no wildcard`,
		"list --state dead --routing-key orders.%":                  `the % in "orders.%"`,
		"resend --state dead --routing-key orders.%":                `the % in "orders.%"`,
		"delete --state dead --yes --routing-key orders.%":          `the % in "orders.%"`,
		"delete --state dead --dry-run --routing-key o.%":           `the % in "o.%"`,
		"resend --state retrying --routing-key orders.%":            `the % in "orders.%"`,
		"list --state published --routing-key orders.%":             `the % in "orders.%"`,
		"resend --state published --routing-key orders.% --dry-run": `the % in "orders.%"`,
		"list --routing-key a%":                                     "", // it matches
		"list --routing-key orders":                                 "",
		"list --routing-key payments.*":                             "",
		"list":                                                      "",
	} {
		r := cdcRelay(t, env, strings.Fields(args)...)
		if r.code != exitDone || !strings.Contains(r.stderr, note) || note == "" && r.stderr != "" {
			t.Errorf("%s: exit code %d, want %q\n%s%s", args, r.code, note, r.stdout, r.stderr)
		}
	}
}

// Each command selects the same rows with a pattern.
func TestPatternsOfRoutingKeysSelectRowsInEveryCommand(t *testing.T) {
	t.Parallel()
	env, db := withTables(t, "--mode", "poll", "--keep-published", "1h")
	keys := `unnest(ARRAY['orders', 'orders.created', 'orders.eu.created', 'orders_created', 'invoices.*', '']) WITH ORDINALITY k(key, i)`
	execute(t, db, `INSERT INTO outbox (routing_key, payload, attempts, available_at) SELECT key, '1', 1, now() + interval '1 hour' FROM `+keys)
	execute(t, db, `INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, payload, failure_reason)
		SELECT i, now(), gen_random_uuid(), 6, 1, key, '1', 'nack' FROM `+keys)
	execute(t, db, `INSERT INTO outbox_published (id, created_at, published_at, message_id, attempts, schema_version, routing_key, payload)
		SELECT i, now(), now(), gen_random_uuid(), 0, 1, key, '1' FROM `+keys)
	for pattern, n := range map[string]int{
		"orders.*": 1, "orders.#": 3, "orders*": 2, "*": 2, "#": 6, "#.created": 2, `invoices.\*`: 1, "invoices.*": 1, `orders.\*`: 0, "": 1, "orders": 1, "orders_": 0,
	} {
		for _, command := range []string{"list --json", "list --state retrying --json", "list --state dead --json", "list --state published --json"} {
			r := cdcRelay(t, env, append(strings.Fields(command), "--routing-key", pattern)...)
			if found := strings.Count(r.stdout, `"routing_key"`); r.code != exitDone || found != n {
				t.Errorf("%s --routing-key %q: exit code %d, %d messages, want %d\n%s", command, pattern, r.code, found, n, r.stderr)
			}
		}
		for _, command := range []string{"resend --state retrying --dry-run --json", "resend --state dead --dry-run --json", "delete --state dead --dry-run --json", "resend --state published --dry-run --json"} {
			r := cdcRelay(t, env, append(strings.Fields(command), "--routing-key", pattern)...)
			if r.code != exitDone || !strings.Contains(r.stdout, fmt.Sprintf(`"matched": %d`, n)) {
				t.Errorf("%s --routing-key %q: exit code %d, want %d\n%s%s", command, pattern, r.code, n, r.stdout, r.stderr)
			}
		}
	}
	wantUsage(t, cdcRelay(t, env, "list", "--routing-key", `orders\.created`),
		`--routing-key: 'orders\.created': want \ only before *, #, a comma or another \`)
}

// The values are the same in the browser.
func TestUnreadableFiltersAreUsageErrors(t *testing.T) {
	t.Parallel()
	env := environment{"CDC_RELAY_DATABASE_URL": someDatabase}
	for _, command := range []string{"list", "list --state dead", "resend --state dead", "delete --state dead --yes", "resend --state retrying", "list --state published", "resend --state published --yes"} {
		for _, test := range [][3]string{
			{"--routing-key", "\xff", "not valid UTF-8"},
			{"--routing-key", "a\x00b", "NUL"},
			{"--exchange", "\xed\xa0\x80", "not valid UTF-8"},
			{"--ordering-key", "\xc3(", "not valid UTF-8"},
			{"--table", "public.\xff", "not valid UTF-8"},
			{"--older-than", "7 d", "want a duration such as"},
			{"--newer-than", "-1h", "more than zero"},
			{"--older-than", "1000000d", "longer than the longest duration"},
			{"--older-than", "2026-13-01", "want a time such as 2026-11-01"},
			{"--newer-than", "2026-11-01T25:00:00Z", "want a time such as 2026-11-01"},
			{"--newer-than", "2026-11-01T10:00:00", "has no zone: want a time such as 2026-11-01 (UTC), 2026-11-01T10:00Z"},
			{"--older-than", "9999-12-31", "is in the future"},
			{"--older-than", "infinity", "want a duration such as 90m, 7d or 2w, or a time such as 2026-11-01 (UTC)"},
			{"--limit", "9223372036854775807", "want 1 to 1000000"},
		} {
			words := strings.Fields(command)
			if !slices.Contains(takersOf(strings.TrimPrefix(test[0], "--")), words[0]) {
				continue
			}
			r := cdcRelay(t, env, append(words, test[0], test[1])...)
			if r.code != exitUsage || !strings.Contains(r.stderr, test[2]) || strings.Contains(r.stderr, "SQLSTATE") {
				t.Errorf("%s %q: exit code %d, want %q\n%s", command, test[:2], r.code, test[2], r.stderr)
			}
		}
		for _, name := range []string{"x", "1e3", "\xff", "9223372036854775808", "5f0c4a86"} {
			words := strings.Fields(command)
			if command == "list" {
				continue
			}
			if r := cdcRelay(t, env, append(words, "--id", name)...); r.code != exitUsage {
				t.Errorf("%s --id %q: exit code %d\n%s", command, name, r.code, r.stderr)
			}
		}
	}
	r := cdcRelay(t, nil, "list", "--database-url", "postgres://u:s3cr3t\xff@localhost/x")
	if r.code != exitUsage || strings.Contains(r.stderr, "s3cr3t") {
		t.Errorf("a URL that is not UTF-8: exit code %d\n%s", r.code, r.stderr)
	}
}

func TestDatesSelectRows(t *testing.T) {
	t.Parallel()
	env, db := withTables(t, "--mode", "poll")
	execute(t, db, `INSERT INTO outbox (routing_key, payload, created_at) VALUES ('old', '1', '2024-10-31 23:59:59Z'), ('new', '1', '2024-11-01 10:00:00Z')`)
	for args, found := range map[string]string{
		"--older-than 2024-11-01": "old", "--newer-than 2024-11-01": "new", "--older-than 2024-11-01T10:00:00Z": "old new", "--newer-than 2024-11-01T10:00:00Z": "",
		"--older-than 2024-11-01T11:00:00+02:00": "old", "--older-than 0001-01-01": "", "--newer-than 0001-01-01": "old new",
		"--older-than 0000-01-01": "", "--newer-than 0000-01-01": "old new", "--older-than 2024-11-01T09:59Z": "old", "--newer-than 2024-11-01T11:59+02:00": "new",
		"--older-than 106751d23h47m16s": "", "--newer-than 106751d23h47m16s": "old new", "--newer-than 2024-10-31 --older-than 2024-11-01": "old",
	} {
		r := cdcRelay(t, env, append([]string{"list", "--json"}, strings.Fields(args)...)...)
		for _, key := range []string{"old", "new"} {
			if strings.Contains(r.stdout, `"`+key+`"`) != strings.Contains(found, key) || r.code != exitDone {
				t.Errorf("%s: exit code %d, want %q\n%s%s", args, r.code, found, r.stdout, r.stderr)
			}
		}
	}
}
