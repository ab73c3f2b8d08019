package main

import (
	"encoding/json"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// The role has only the documented grants.
func TestPublishedMessagesAreFoundShownAndReplayed(t *testing.T) {
	t.Parallel()
	env, db := withTables(t)
	env["CDC_RELAY_AMQP_URL"] = services.VHost(t)
	orders := arrivals(t, env["CDC_RELAY_AMQP_URL"], "orders", "")
	for _, args := range [][]string{{"list", "--state", "published"}, {"resend", "--state", "published", "--all", "--yes"}, {"run", "--log-format", "text", "--keep-published", "1h"}} {
		r := cdcRelay(t, env, args...)
		want(t, r, exitFailed)
		if !strings.Contains(r.stderr, "hint: cdc-relay setup --keep-published 1") || strings.Count(r.stderr, "not kept") > 1 {
			t.Errorf("%v: %s", args, r.stderr)
		}
	}
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
	if n := query[int](t, db, `SELECT count(*)::int FROM outbox_p`); n != 0 {
		t.Errorf("%d rows are in no partition of a day", n)
	}
	wantOutput(t, cdcRelay(t, env, "list", "--state", "published", "--newer-than", "1h"), first.MessageId, "orders")
	wantOutput(t, cdcRelay(t, env, "list", "--state", "published", "--older-than", "1h"), "no published messages")
	r := cdcRelay(t, env, "explain", "1", "--payload")
	wantOutput(t, r, "published", "ago", `"***" (redacted)`)
	if strings.Contains(r.stdout, "unredacted") {
		t.Error("the payload is shown")
	}
	want(t, cdcRelay(t, env, "explain", "77"), exitNotFound)
	for _, id := range []string{"1", first.MessageId} {
		wantOutput(t, cdcRelay(t, env, "explain", id), "public.outbox_published", "published")
		wantOutput(t, cdcRelay(t, env, "explain", id, "--format", "json"), `"state": "published"`, `"published_at": "`)
	}
	want(t, cdcRelay(t, env, "resend", "--state", "published"), exitUsage)
	wantOutput(t, cdcRelay(t, env, "resend", "--state", "published", "--all", "--dry-run"), "would resend 2 messages")
	backfill := arrivals(t, env["CDC_RELAY_AMQP_URL"], "backfill", "backfill")
	wantOutput(t, cdcRelay(t, env, "resend", "--state", "published", "1", "--yes", "--to-exchange", "backfill", "--to-routing-key", "again", "--rate", "100"), "resent 1 message")
	again := await.Receive(t, "the replayed message arrives", backfill)
	if again.MessageId != first.MessageId || again.RoutingKey != "again" || string(again.Body) != `{"card": "unredacted"}` || again.Headers["x-possible-duplicate"] != true {
		t.Errorf("replayed: %+v", again)
	}
	kept(3)
	var list struct {
		Messages []struct{ ID int }
		Next     *string
	}
	r = cdcRelay(t, env, "list", "--state", "published", "--limit", "2", "--format", "json")
	if err := json.Unmarshal([]byte(r.stdout), &list); err != nil || len(list.Messages) != 2 || list.Messages[0].ID != 3 || list.Next == nil {
		t.Errorf("%v: %s", err, r.stdout)
	}
	noMore(t, orders)

	// Without the table, published rows cannot be deleted: the relay reports it, and the rows stay.
	execute(t, db, `DROP TABLE outbox_published`)
	execute(t, db, `INSERT INTO outbox (routing_key, payload) VALUES ('orders', '3')`)
	await.Receive(t, "the message arrives", orders)
	relay.await(t, "outbox_published does not exist")
	if code := relay.exit(t); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	if n := query[int](t, db, `SELECT count(*)::int FROM outbox`); n != 1 {
		t.Errorf("%d rows are left", n)
	}
	wantOutput(t, cdcRelay(t, env, "drain"), "")
	wantOutput(t, cdcRelay(t, env, "teardown", "--tables", "--yes"), "dropped tables")
	if n := query[int](t, db, `SELECT count(*)::int FROM pg_class WHERE relname LIKE 'outbox%'`); n != 0 {
		t.Errorf("%d tables are left", n)
	}
}

func noMore(t *testing.T, deliveries <-chan amqp.Delivery) {
	t.Helper()
	select {
	case d := <-deliveries:
		t.Errorf("another message arrived: %+v", d)
	default:
	}
}
