package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

const (
	insertDead = `INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key,
		ordering_key, payload, failure_reason, last_error) VALUES ($1, now(), $2, 6, 1, 'orders', $3, '1',
		'retries_exhausted', 'unroutable: NO_ROUTE')`
	insertPublished = `INSERT INTO outbox_published (id, created_at, published_at, message_id, attempts,
		schema_version, routing_key, payload) VALUES ($1, now(), '2024-11-01 10:00Z', $2, 0, 1, 'orders', '1')`
)

// uuid is the message_id of row n.
func uuid(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// insertWaiting inserts row n, with values of available_at, attempts, ordering_key.
func insertWaiting(t *testing.T, db *pgx.Conn, n int, values string) {
	t.Helper()
	execute(t, db, `INSERT INTO outbox (id, message_id, routing_key, payload, last_error, available_at, attempts, ordering_key)
		VALUES ($1, $2, 'orders', '1', 'nack: full', `+values+`)`, n, uuid(n))
}

func TestResendFindsAMessageInEachTable(t *testing.T) {
	t.Parallel()
	env, db := withTables(t, "--mode", "poll", "--keep-published", "1h")
	execute(t, db, `SELECT setval('outbox_id_seq', 1000)`)
	insertWaiting(t, db, 1, `now() + interval '1 hour', 3, NULL`)
	execute(t, db, insertDead, 2, uuid(2), nil)
	execute(t, db, insertPublished, 3, uuid(3))
	insertWaiting(t, db, 4, `NULL, 0, NULL`)
	insertWaiting(t, db, 5, `now() + interval '1 hour', 0, NULL`)
	insertWaiting(t, db, 6, `now() + interval '1 hour', 1, 'k'`)
	insertWaiting(t, db, 7, `NULL, 0, 'k'`)
	insertWaiting(t, db, 8, `now() + interval '1 hour', 1, 'k'`)
	insertWaiting(t, db, 9, `NULL, 0, 'dead'`)
	execute(t, db, insertDead, 10, uuid(10), "dead")
	execute(t, db, insertDead, 11, uuid(11), nil)
	execute(t, db, insertPublished, 12, uuid(11))
	execute(t, db, insertDead, 13, uuid(13), nil)
	execute(t, db, insertPublished, 13, uuid(14)) // the sequence was restarted
	execute(t, db, insertDead, 15, uuid(15), nil)
	execute(t, db, insertDead, 16, uuid(15), nil) // two copies died
	rows := func() string {
		return query[string](t, db, `SELECT concat((SELECT string_agg(o::text, ';' ORDER BY id) FROM outbox o),
			(SELECT string_agg(d::text, ';' ORDER BY id, message_id) FROM outbox_dead_letter d))`)
	}
	before := rows()
	for _, test := range []struct {
		args string
		code int
		says string // on either output
	}{
		{"1 --dry-run", exitDone, "Message 1 is in public.outbox: it is tried again at "},
		{uuid(1) + " --dry-run", exitDone, "It is made due now, with all its attempts."},
		{"2 --dry-run", exitDone, "Message 2 is a dead letter in public.outbox_dead_letter (unroutable: NO_ROUTE). It moves back to public.outbox"},
		{"3 --dry-run", exitDone, "Message 3 was published at 2024-11-01 10:00:00Z. A copy with the same message_id is sent"},
		{"3", exitFailed, "Send 1 published message again, at "},
		{"1 3", exitFailed, "not confirmed: nothing was sent"}, // nor is 1 retried
		{"4", exitDone, "it waits for a relay: none streams. "},
		{"5", exitFailed, "it is scheduled: it is published at "},
		{"5", exitFailed, "It cannot be resent: cdc-relay explain 5"},
		{"7", exitFailed, "it waits for 1 row of its ordering key; the first of them, row 6, is tried again at "},
		{"8 --dry-run", exitDone, "the first of them, row 6, is tried again at "},
		{"9", exitDone, "There is nothing to resend."},
		{"9 --on-dead-letter block", exitFailed, "cdc-relay resend --state dead 10, or delete. It cannot be resent"},
		{"11 --dry-run", exitDone, "Message 11 is a dead letter"},
		{uuid(11) + " --dry-run", exitDone, "It was also published before (public.outbox_published)."},
		{"13 --yes", exitFailed, "13 matches several rows, and nothing was changed: row 13 of public.outbox_dead_letter with message_id " + uuid(13)},
		{"13 --yes", exitFailed, "Instead give one message_id"},
		{uuid(14) + " --dry-run", exitDone, "was published at"},
		{uuid(15), exitFailed, "Instead give the id of one row"},
		{"16 --dry-run", exitDone, "Message 16 is a dead letter"},
		{"99", exitNotFound, "99 is in none of public.outbox, public.outbox_dead_letter and public.outbox_published. No table can tell why: published before "},
		{"1 99 --yes", exitNotFound, "99 is in none of"}, // nor is 1 retried
		{uuid(99) + " --json", exitNotFound, "is in none of"},
		{"", exitUsage, "resend: say which: an ID"},
		{"x", exitUsage, `resend: "x": want the id of a row`},
		{"1 -- -1", exitNotFound, "-1 is in none of"},
	} {
		r := withInput(t, env, "", append([]string{"resend"}, strings.Fields(test.args)...)...)
		if r.code != test.code || !strings.Contains(r.stdout+r.stderr, test.says) {
			t.Errorf("resend %s: exit code %d, want %d and %q\n%s%s", test.args, r.code, test.code, test.says, r.stdout, r.stderr)
		}
		if rows() != before {
			t.Fatalf("resend %s changed rows", test.args)
		}
	}
	r := cdcRelay(t, env, "resend", "1", "2", "3", uuid(3), "3", "4", "8", "--yes", "--json")
	wantOutput(t, r, `"matched": 4`, `"resent": 4`, `"state": "dead"`, `"action": "replay"`, `"action": "none"`)
	if n := strings.Count(r.stdout, `"state"`); n != 5 {
		t.Errorf("%d messages\n%s", n, r.stdout)
	}
	due := query[string](t, db, `SELECT string_agg(message_id::text, ' ' ORDER BY message_id) FROM outbox WHERE available_at <= clock_timestamp() AND attempts = 0`)
	if want := strings.Join([]string{uuid(1), uuid(2), uuid(3), uuid(8)}, " "); due != want {
		t.Errorf("due: %s, want %s", due, want)
	}
	wantOutput(t, cdcRelay(t, env, "resend", uuid(2)), "There is nothing to resend.")
	wantOutput(t, cdcRelay(t, env, "resend", uuid(3)), "There is nothing to resend.", "It was also published before")
	wantOutput(t, cdcRelay(t, env, "resend", "16"), "resent 1 dead letter\n")

	execute(t, db, `DROP TABLE outbox_published`)
	r = cdcRelay(t, env, "resend", "97", "98", "99") // no command brings them back
	if want(t, r, exitNotFound); !strings.Contains(r.stderr, "97, 98, 99 are neither in public.outbox nor in public.outbox_dead_letter. No table can tell why: published and deleted, ") ||
		!strings.HasPrefix(hintOf(r), "# check the ID, --table and --database-url") {
		t.Errorf("got %s", r.stderr)
	}
}

// A role that may not read the history still resends what waits.
func TestResendNeedsNoHistoryForADeadLetter(t *testing.T) {
	env, db := withTables(t, "--mode", "poll", "--keep-published", "1h")
	execute(t, db, `SELECT setval('outbox_id_seq', 1000)`)
	execute(t, db, insertDead, 2, uuid(2), nil)
	role := newRole(t, db, "", "LOGIN")
	execute(t, db, `GRANT SELECT, INSERT ON outbox TO `+role+`; GRANT SELECT, DELETE ON outbox_dead_letter TO `+role+`; GRANT SELECT ON SEQUENCE outbox_id_seq TO `+role)
	env = asRole(t, env, db, role)
	r := cdcRelay(t, env, "resend", "99")
	wantError(t, r, "outbox_published")
	r = cdcRelay(t, env, "resend", "2")
	wantOutput(t, r, "resent 1 dead letter")
	execute(t, db, `UPDATE outbox SET available_at = now() + interval '1 hour', attempts = 1`)
	wantError(t, cdcRelay(t, env, "resend", "2"), "GRANT SELECT, UPDATE ON")
	wantError(t, cdcRelay(t, env, "delete", "2", "--yes"), "GRANT SELECT, UPDATE, DELETE ON")
}

func TestTheNextMessageOfAKeyArrivesOnceItsFirstIsDeleted(t *testing.T) {
	t.Parallel()
	env, db := withTables(t)
	env["CDC_RELAY_AMQP_URL"] = services.VHost(t)
	orders := arrivals(t, env["CDC_RELAY_AMQP_URL"], "orders", "")
	start(t, env, "run", "--poll-interval", "100ms", "--backoff-time", "1h", "--max-backoff", "1h")
	execute(t, db, `INSERT INTO outbox (message_id, routing_key, payload, ordering_key) VALUES
		($1, 'lost', '1', 'k'), ($2, 'orders', '2', 'k')`, uuid(1), uuid(2))
	await.Until(t, "the first is rejected", func() bool { return query[int](t, db, `SELECT count(*)::int FROM outbox WHERE attempts = 1`) == 1 })
	// On a busy machine the relay may have marked it, so the command may not know that it was never published.
	wantOutput(t, cdcRelay(t, env, "delete", uuid(1), "--yes"), "deleted 1 message")
	if d := await.Receive(t, "the next of the key arrives", orders); d.MessageId != uuid(2) {
		t.Errorf("got %s", d.MessageId)
	}
}

// The role has only the documented grants.
func TestPublishedMessagesAreFoundShownAndReplayed(t *testing.T) {
	t.Parallel()
	env, db := withTables(t)
	env["CDC_RELAY_AMQP_URL"] = services.VHost(t)
	orders := arrivals(t, env["CDC_RELAY_AMQP_URL"], "orders", "")
	wantOutput(t, cdcRelay(t, env, "setup", "--keep-published", "168h"), "created history public.outbox_published")
	wantOutput(t, cdcRelay(t, env, "setup", "--keep-published", "168h"), "history public.outbox_published: exists, nothing to do")
	wantOutput(t, cdcRelay(t, env, "list", "--state", "published"), "no published messages")
	relay := start(t, env, "run", "--keep-published", "168h", "--poll-interval", "100ms")
	execute(t, db, `INSERT INTO outbox (routing_key, payload, redacted_payload) VALUES ('orders', '{"card": "unredacted"}', '"***"'), ('orders', '2', NULL)`)
	first := await.Receive(t, "the message arrives", orders)
	await.Receive(t, "the message arrives", orders)
	kept := func(n int) {
		t.Helper()
		await.Until(t, "the rows are kept", func() bool { return query[int](t, db, `SELECT count(*)::int FROM outbox_published`) == n })
	}
	kept(2)
	wantValue(t, db, 0, `SELECT count(*)::int FROM outbox_p`)
	wantOutput(t, cdcRelay(t, env, "list", "--state", "published"), first.MessageId, "orders")
	wantOutput(t, cdcRelay(t, env, "explain", first.MessageId, "--json"), `"state": "published"`, `"published_at": "`)
	backfill := arrivals(t, env["CDC_RELAY_AMQP_URL"], "backfill", "backfill")
	wantOutput(t, cdcRelay(t, env, "resend", "--state", "published", "1", "--yes", "--to-exchange", "backfill", "--to-routing-key", "again", "--rate", "100"), "resent 1 message")
	again := await.Receive(t, "the replayed message arrives", backfill)
	if again.MessageId != first.MessageId || again.RoutingKey != "again" || string(again.Body) != `{"card": "unredacted"}` || again.Headers["x-possible-duplicate"] != true {
		t.Errorf("replayed: %+v", again)
	}
	kept(3)
	select {
	case d := <-orders:
		t.Errorf("another message arrived: %+v", d)
	default:
	}

	// Without the table, published rows cannot be deleted: the relay reports it, and the rows stay.
	execute(t, db, `DROP TABLE outbox_published`)
	execute(t, db, `INSERT INTO outbox (routing_key, payload) VALUES ('orders', '3')`)
	await.Receive(t, "the message arrives", orders)
	relay.await(t, "outbox_published does not exist")
	relay.ends(t, exitFailed)
	wantValue(t, db, 1, `SELECT count(*)::int FROM outbox`)
	wantOutput(t, cdcRelay(t, env, "drain"), "")
	wantOutput(t, cdcRelay(t, env, "teardown", "--tables", "--yes"), "dropped tables")
	wantValue(t, db, 0, `SELECT count(*)::int FROM pg_class WHERE relname LIKE 'outbox%'`)
}
