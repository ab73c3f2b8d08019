package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// Each command that sends or deletes asks, or needs --yes. A new command must decide, too.
func TestCommandsThatSendOrDeleteAskFirst(t *testing.T) {
	t.Parallel()
	asks := []string{"check", "delete", "resend", "teardown"}
	if got := takersOf("yes"); !slices.Equal(sorted(got), asks) {
		t.Errorf("commands with --yes: %q", got)
	}
	if got := takersOf("dry-run"); !slices.Equal(sorted(got), []string{"delete", "resend"}) {
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
		{"resend --state published --routing-key r --to-exchange e\x1b --json", `Send 694 messages of public.outbox_published again to exchange "e\\x1b", at `, [3]int{695, 3, 694}},
		{"resend --state published --newer-than 1d --rate 1000000", "Send 694 messages", [3]int{695, 3, 694}},
		{"resend --state published --id 1,2 --after-id 1", "Send 1 message", [3]int{2, 3, 1}},
		{"delete --state dead --all", "Delete 3 dead letters from public.outbox_dead_letter at ", [3]int{1, 0, 0}},
		{"delete --state dead -- -1", "Delete 1 dead letter from ", [3]int{1, 2, 0}},
		{"delete --state dead --newer-than 1d --id -1,-2 --id -3", "Delete 3 dead letters from ", [3]int{1, 0, 0}},
		{"teardown --slot never_there", "Drop slot never_there and ", before},
		{"resend --state dead --all", "", [3]int{4, 0, 3}},
		{"resend --state dead --reason nack", "", [3]int{4, 0, 3}},
		{"resend --state retrying --all", "", [3]int{1, 3, 1}}, // they ask only on a terminal
		{"delete --state retrying --all", "No message waits behind these.\nDelete 1 retrying message from public.outbox at ", [3]int{0, 3, 0}},
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
		"resend --state dead --routing-key orders.%":                `the % in "orders.%"`,
		"resend --state published --routing-key orders.% --dry-run": `the % in "orders.%"`,
		"list --routing-key a%":                                     "", // it matches
		"list --routing-key payments.*":                             "",
		"list":                                                      "",
	} {
		r := cdcRelay(t, env, strings.Fields(args)...)
		if r.code != exitDone || !strings.Contains(r.stderr, note) || note == "" && r.stderr != "" {
			t.Errorf("%s: exit code %d, want %q\n%s%s", args, r.code, note, r.stdout, r.stderr)
		}
	}
}

// All commands that select rows have the same filters, and so has the console.
func TestUnreadableFiltersAreUsageErrors(t *testing.T) {
	t.Parallel()
	env := environment{"CDC_RELAY_DATABASE_URL": someDatabase}
	const id = "want the id of a row"
	for _, test := range [][3]string{
		{"--routing-key", "\xff", "not valid UTF-8"},
		{"--routing-key", "a\x00b", "NUL"},
		{"--exchange", "\xed\xa0\x80", "not valid UTF-8"},
		{"--ordering-key", "\xc3(", "not valid UTF-8"},
		{"--table", "public.\xff", "not valid UTF-8"},
		{"--older-than", "7 d", "want a duration such as"},
		{"--newer-than", "-1h", "more than zero"},
		{"--older-than", "2026-13-01", "want a time such as 2026-11-01"},
		{"--newer-than", "2026-11-01T10:00:00", "has no zone: want a time such as 2026-11-01 (UTC), 2026-11-01T10:00Z"},
		{"--older-than", "9999-12-31", "is in the future"},
		{"--limit", "9223372036854775807", "want 1 to 1000000"},
		{"--id", "x", id},
		{"--id", "1e3", id},
		{"--id", "\xff", "UTF-8"},
		{"--id", "9223372036854775808", id},
		{"--id", "5f0c4a86", id},
	} {
		r := cdcRelay(t, env, "list", "--state", "dead", test[0], test[1])
		if r.code != exitUsage || !strings.Contains(r.stderr, test[2]) || strings.Contains(r.stderr, "SQLSTATE") {
			t.Errorf("%q: exit code %d, want %q\n%s", test[:2], r.code, test[2], r.stderr)
		}
	}
	r := cdcRelay(t, nil, "list", "--database-url", "postgres://u:s3cr3t\xff@localhost/x")
	if r.code != exitUsage || strings.Contains(r.stderr, "s3cr3t") {
		t.Errorf("a URL that is not UTF-8: exit code %d\n%s", r.code, r.stderr)
	}
}

func TestDeleteNamesWhatItCannotKnow(t *testing.T) {
	t.Parallel()
	env, db := withTables(t, "--mode", "poll", "--keep-published", "1h")
	insertWaiting(t, db, 1, `now() + interval '1 hour', 0, NULL`)
	insertWaiting(t, db, 2, `NULL, 0, NULL`)
	insertWaiting(t, db, 3, `now() + interval '1 hour', 0, NULL`)
	insertWaiting(t, db, 4, `now(), 1, NULL`)
	execute(t, db, insertDead, 5, uuid(5), nil)
	execute(t, db, insertPublished, 6, uuid(6))
	left := func() string {
		return query[string](t, db, `SELECT coalesce(string_agg(id::text, ' ' ORDER BY id), '') FROM outbox`)
	}
	other := lockRow(t, db, 3)
	for _, test := range []struct {
		args, answer string
		code         int
		says         string
		left         string
	}{
		{"1", "", exitFailed, "Delete 1 message from public.outbox at ", "1 2 3 4"},
		{"1", "n\n", exitFailed, "not confirmed: nothing was deleted", "1 2 3 4"},
		{"1 2 --dry-run", "", exitDone, "would delete 2 messages from public.outbox", "1 2 3 4"},
		{"1 5 --dry-run", "", exitDone, "would delete 1 message from public.outbox and 1 dead letter from public.outbox_dead_letter", "1 2 3 4"},
		{"1 5", "n\n", exitFailed, "Delete 1 message from public.outbox and 1 dead letter from public.outbox_dead_letter at ", "1 2 3 4"},
		{"5 99 --yes", "", exitNotFound, "99 is in none of public.outbox, ", "1 2 3 4"}, // nor is 5 deleted
		{"5 --yes", "", exitDone, "deleted 1 dead letter\n", "1 2 3 4"},
		{"6 --yes", "", exitFailed, "6 was published at 2024-11-01 10:00:00Z: run --keep-published deletes whole days of public.outbox_published", "1 2 3 4"},
		{"99 --yes", "", exitNotFound, "99 is in none of public.outbox, ", "1 2 3 4"},
		{"3 --yes", "", exitFailed, "1 message is locked by another session\n  hint: cdc-relay list --state locked", "1 2 3 4"},
		{"--yes", "", exitUsage, "delete: say which: an ID", "1 2 3 4"},
		{"1", "y\n", exitDone, "deleted 1 message, never published", "2 3 4"},
		{uuid(2) + " 3 --yes --json", "", exitFailed, `"deleted": 1,` + "\n" + `  "left": 1,` + "\n" + `  "unpublished": 0`, "3 4"},
		{"4 --yes", "", exitDone, "deleted 1 message; a relay may have published it, or may be publishing it now", "3"},
	} {
		r := withInput(t, env, test.answer, append([]string{"delete"}, strings.Fields(test.args)...)...)
		if r.code != test.code || !strings.Contains(r.stdout+r.stderr, test.says) || left() != test.left {
			t.Errorf("delete %s: exit code %d, rows %s, want %d, %s and %q\n%s%s",
				test.args, r.code, left(), test.code, test.left, test.says, r.stdout, r.stderr)
		}
	}
	other.Close(t.Context())
}

// lockRow locks a row of the outbox until the caller closes the connection.
func lockRow(t *testing.T, db *pgx.Conn, id int) *pgx.Conn {
	t.Helper()
	conn := tabletest.Connect(t, db.Config().ConnString())
	execute(t, conn, `BEGIN`)
	execute(t, conn, `SELECT 1 FROM outbox WHERE id = $1 FOR UPDATE`, id)
	return conn
}

// A blocked key goes on, and its head is not lost: the relay publishes the others, and resend sends the head.
func TestAHeadGoesToTheDeadLettersAndItsKeyGoesOn(t *testing.T) {
	env, db := withTables(t, "--mode", "poll")
	execute(t, db, `ALTER TABLE outbox ADD COLUMN tenant text; ALTER TABLE outbox_dead_letter ADD COLUMN tenant text`)
	execute(t, db, `INSERT INTO outbox (id, exchange, routing_key, payload, ordering_key, attempts, available_at, last_error, tenant) OVERRIDING SYSTEM VALUE VALUES
		(1, '', 'r', '{"a": 1}', 'k', 2, now() + interval '1 hour', 'unroutable: no', 'acme'), (2, NULL, 'r', '2', 'k', 0, NULL, NULL, NULL), (3, NULL, 'r', '3', 'z', 0, NULL, NULL, NULL)`)
	wantOutput(t, cdcRelay(t, env, "explain", "1"), "to let its key go on  cdc-relay delete ", "place                 first in line for key k")
	wantOutput(t, cdcRelay(t, env, "delete", "1", "--dead-letter", "--dry-run"), "would move 1 message to the dead letters")
	execute(t, db, `BEGIN; SELECT FROM outbox WHERE id = 3 FOR UPDATE`)
	wantOutput(t, cdcRelay(t, env, "delete", "1", "--dead-letter", "--yes", "--json"), `"moved": 1`)
	wantError(t, cdcRelay(t, env, "delete", "3", "--dead-letter", "--yes"), "locked")
	execute(t, db, `COMMIT`)
	got := query[string](t, db, `SELECT concat_ws(' ', d.id, payload, d.attempts, last_error, failure_reason, d.possible_duplicate, tenant,
		(SELECT count(*) FROM outbox)) FROM outbox_dead_letter d`)
	if got != `1 {"a": 1} 2 unroutable: no by_hand f acme 2` && got != `1 {"a": 1} 2 unroutable: no by_hand acme 2` {
		t.Errorf("got %s", got)
	}
	wantOutput(t, cdcRelay(t, env, "list", "--state", "dead"), "\n1   ", "  unroutable  (default)  ")
	wantOutput(t, cdcRelay(t, env, "stats"), "\nunroutable  ")
	wantOutput(t, cdcRelay(t, env, "explain", "1"), "exchange      (default)", "unroutable: ", "; a person moved it here", "declare a queue with the name of the routing key", "then: cdc-relay resend")
	wantOutput(t, cdcRelay(t, env, "keys", "--blocked", "--json"), `"keys": []`)
	wantError(t, cdcRelay(t, env, "delete", "1", "--dead-letter", "--yes"), "is not in the outbox")
	wantOutput(t, cdcRelay(t, env, "delete", "--state", "waiting", "--routing-key", "r", "--dead-letter", "--yes"), "moved 2 messages to the dead letters")
	wantValue(t, db, 2, `SELECT count(*) FROM outbox_dead_letter WHERE possible_duplicate`)
	wantOutput(t, cdcRelay(t, env, "resend", "--state", "dead", "--reason", "by_hand", "--yes"), "resent 3 dead letters")
}

// The row of a retry has a message_id of its own, and the id of the task in its headers. Other messages whose ids begin
// alike do not count.
func TestAMessageIsFoundByTheIDOfItsCeleryTask(t *testing.T) {
	env, db := withTables(t, "--mode", "poll", "--keep-published", "1h")
	insert := func(table, retry, task, more, values string) {
		execute(t, db, `INSERT INTO `+table+` (id, message_id, headers, routing_key, payload`+more+`)
			VALUES ((SELECT count(*) FROM outbox) + 100, $1, jsonb_build_object('id', $2::text), 'r', '1'`+values+`)`, retry, task)
	}
	const timed, later = ", available_at, attempts", ", now() + interval '1 hour', 2"
	insert("outbox", uuid(1)[:28]+"0badcafe", uuid(1), timed, later)
	insert("outbox", uuid(2), "another", timed, later)
	insert("outbox", uuid(3), uuid(3), "", "")
	const died, dead = ", created_at, attempts, schema_version, failure_reason", ", now(), 6, 1, 'nack'"
	insert("outbox_dead_letter", uuid(4)[:28]+"0badcafe", uuid(4), died, dead)
	insert("outbox_published", uuid(1), uuid(1), ", created_at, published_at, attempts, schema_version", ", now(), now(), 0, 1") // the first attempt
	for id, code := range map[string]int{uuid(1): exitDone, uuid(3): exitDone, uuid(4): exitDone, uuid(9): exitNotFound} {
		want(t, cdcRelay(t, env, "explain", id), code)
	}
	for _, words := range [][]string{{"resend", uuid(1)}, {"delete", uuid(1), "--yes"}, {"delete", uuid(4), "--yes"}} {
		want(t, cdcRelay(t, env, words...), exitDone)
	}
	wantValue(t, db, "another, "+uuid(3), `SELECT string_agg(headers ->> 'id', ', ' ORDER BY id) FROM outbox`)
	wantValue(t, db, 1, `SELECT (SELECT count(*) FROM outbox_dead_letter) + (SELECT count(*) FROM outbox_published)`)
}
