package main

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/test/await"
)

// Publications that others need, such as one of all tables, publish updates and deletes of ours, too.
func TestAPublicationOfAllTablesStopsNothing(t *testing.T) {
	t.Parallel()
	for name, publication := range map[string]string{
		"all tables":          "FOR ALL TABLES",
		"tables of a schema":  "FOR TABLES IN SCHEMA public",
		"all, by their roots": "FOR ALL TABLES WITH (publish_via_partition_root)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, conn := fresh(t)
			execute(t, conn, "CREATE PUBLICATION everything "+publication)
			want(t, cdcRelay(t, env, "setup", "--keep-published", "24h", "--functions"), exitDone)
			execute(t, conn, "UPDATE outbox_migrations SET version = version; INSERT INTO outbox (routing_key, payload) VALUES ('r', '1')")
			relay := start(t, env, "run", "--publisher", "stdout", "--keep-published", "24h", "--log-format", "json")
			await.Until(t, "the message is in the history", func() bool { return query[int](t, conn, "SELECT count(*) FROM outbox_published") == 1 })
			relay.stopsWell(t)
			execute(t, conn, "DELETE FROM outbox_published; INSERT INTO outbox_p SELECT (json_populate_record(NULL::outbox_p, '{\"id\": 1, \"created_at\": \"2020-01-01Z\", "+
				"\"published_at\": \"2020-01-01Z\", \"message_id\": \"00000000-0000-0000-0000-000000000000\", \"attempts\": 0, \"schema_version\": 1, \"routing_key\": \"r\"}')).*")
			execute(t, conn, "SELECT outbox_rotate(interval '1 h')")
			if n := query[int](t, conn, "SELECT count(*) FROM outbox_published"); n != 0 {
				t.Errorf("%d messages are left in the history", n)
			}
			want(t, cdcRelay(t, env, "teardown", "--tables", "--yes"), exitDone)
		})
	}
}

// The log names the publication, and what Postgres says about it.
func TestAPublicationThatForbidsDeletesIsNamed(t *testing.T) {
	t.Parallel()
	env, conn := withTables(t, "--mode", "poll")
	env["CDC_RELAY_MODE"] = "poll"
	execute(t, conn, "CREATE PUBLICATION other FOR TABLE outbox (routing_key); INSERT INTO outbox (routing_key, payload) VALUES ('r', '1')")
	relay := start(t, env, "run", "--publisher", "stdout", "--log-format", "json", "--poll-interval", "50ms")
	relay.await(t, "Column list used by the publication does not cover the replica identity")
	execute(t, conn, "ALTER PUBLICATION other SET (publish = 'insert')")
	await.Until(t, "the message has left", func() bool { return query[int](t, conn, "SELECT count(*) FROM outbox") == 0 })
	relay.stopsWell(t)
	if n := query[int](t, conn, "SELECT count(*) FROM outbox_dead_letter"); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}
