package adopt_test

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/adopt"
)

// The tables as CAP creates them (IStorageInitializer.PostgreSql.cs), and Namastack's script for Postgres.
const (
	capPublished = `CREATE SCHEMA cap; CREATE TABLE cap.published ("Id" BIGINT PRIMARY KEY NOT NULL, "Version" VARCHAR(20) NOT NULL, "Name" VARCHAR(200) NOT NULL, "Content" TEXT NULL,
		"Retries" INT NOT NULL, "Added" TIMESTAMP NOT NULL, "ExpiresAt" TIMESTAMP NULL, "StatusName" VARCHAR(50) NOT NULL);
		CREATE INDEX "idx_published_ExpiresAt_StatusName" ON cap.published ("ExpiresAt", "StatusName")`
	outboxRecord = `CREATE TABLE outbox_record (id VARCHAR(255) NOT NULL, status VARCHAR(20) NOT NULL, record_key VARCHAR(255) NOT NULL, record_type VARCHAR(255) NOT NULL, payload TEXT NOT NULL,
		context TEXT, created_at TIMESTAMP WITH TIME ZONE NOT NULL, completed_at TIMESTAMP WITH TIME ZONE, failure_count INT NOT NULL, failure_reason VARCHAR(1000),
		next_retry_at TIMESTAMP WITH TIME ZONE NOT NULL, partition_no INTEGER NOT NULL, handler_id VARCHAR(1000) NOT NULL, PRIMARY KEY (id));
		CREATE INDEX idx_outbox_record_partition_status_retry ON outbox_record (partition_no, status, next_retry_at)`
)

func TestCAPRowsBecomeMessages(t *testing.T) {
	s := open(t, capPublished)
	s.Exec("GRANT USAGE ON SCHEMA cap TO " + s.role + "; GRANT INSERT ON cap.published TO " + s.role + "; SET timezone = 'UTC'")
	const insert = `INSERT INTO cap.published ("Id", "Version", "Name", "Content", "Retries", "Added", "ExpiresAt", "StatusName") VALUES `
	const content = `'{"Headers": {"cap-msg-id": "7", "cap-callback-name": null}, "Value": {"n":  1}}'`
	s.Exec(insert + `(1, 'v1', 'orders.created', ` + content + `, 3, '2026-01-01', '2026-02-01', 'Failed'), (2, 'v1', 'orders.created', ` + content + `, 0, '2026-01-02', NULL, 'Scheduled'),
		(3, 'v1', 'done', ` + content + `, 0, '2026-01-01', '2026-01-02', 'Succeeded'), (4, 'v1', 'later', ` + content + `, 0, '2026-01-01', '2030-01-01 00:00', 'Delayed'),
		(5, 'v1', 'soon', ` + content + `, 0, '2026-01-01', '2031-01-01', 'Queued'), (6, 'v1', 'odd', ` + content + `, 0, '2026-01-01', '2031-01-01', 'Whatever'),
		(7, 'v1', 'delay', '{"Headers": {"cap-delaytime": "1460.02:03:04.5000000"}, "Value": 1}', 0, '2026-01-01', NULL, 'Scheduled')`)
	s.moves(6, s.request(adopt.CAP, "cap.published", "", ""))
	s.is("3 0 0 0 0 0", "SELECT string_agg(attempts::text, ' ' ORDER BY id) FROM outbox")
	id := s.rows()[0]["message_id"]
	s.want(
		row{
			"exchange": "cap.default.router", "routing_key": "orders.created", "body": `{"n":  1}`, "headers": "map[cap-msg-id:7]", "created_at": "2026-01-01T00:00:00+00:00",
			"available_at": nil, "expires_at": nil, "possible_duplicate": true, "properties": nil, "ordering_key": nil,
		},
		row{"available_at": nil}, row{"routing_key": "later", "available_at": "2030-01-01T00:00:00+00:00"}, row{"available_at": "2031-01-01T00:00:00+00:00"},
		row{"routing_key": "odd", "available_at": nil}, row{"available_at": "2029-12-31T02:03:04.5+00:00"},
	)
	s.is("done", `SELECT string_agg("Name", ' ') FROM cap.published`)

	// The application's clock and time zone differ from those of the database.
	added := func(id, content string) string {
		return insert + `(` + id + `, 'v1', 'new', ` + content + `, 0, '2020-01-01', NULL, 'Scheduled')`
	}
	s.insert(added("1", content), added("11", `'{"headers": {"a": "b"}, "value": "text"}'`), added("12", `'{"Headers": {}, "Value": null}'`),
		added("13", `'{"Headers": {"cap-delaytime": "00:30:00"}, "Value": [1]}'`),
		added("14", `'not {json'`), added("15", `NULL`), added("16", `'{"Value": 1}'`), added("17", `'[1]'`), added("18", `'{"Headers": {"cap-delaytime": "soon"}, "Value": 1}'`), added("19", `''`))
	s.is("00:30:00 true", "SELECT string_agg((available_at - created_at)::text, ' ') || ' ' || (min(created_at) > now() - interval '1 hour') FROM outbox WHERE payload::text = '[1]'")
	dead := row{"exchange": "cap.default.router", "headers": "cdc-relay adopt: Content has no Headers"}
	s.want(row{"message_id": id, "body": `{"n":  1}`, "headers": "map[cap-msg-id:7]", "possible_duplicate": nil}, row{"body": `"text"`, "headers": "map[a:b]"}, row{"body": "bytes:", "headers": nil}, row{},
		dead, dead, dead, dead, row{"headers": `cdc-relay adopt: invalid input syntax for type interval: "soon"`, "available_at": nil}, dead)
	s.is(1, "SELECT count(*) FROM cap.published")
}

func TestNamastackRecordsBecomeMessages(t *testing.T) {
	s := open(t, outboxRecord)
	const insert = "INSERT INTO outbox_record (id, status, record_key, record_type, payload, created_at, failure_count, next_retry_at, partition_no, handler_id) VALUES "
	record := func(id, status, payload string, failures int, handler string) string {
		return insert + "('" + id + "', '" + status + "', 'order-7', 'shop.OrderCreated', '" + payload + "', '2026-01-0" + id[len(id)-1:] + " 00:00Z', " +
			string(rune('0'+failures)) + ", '2030-01-01 00:00Z', 3, '" + handler + "')"
	}
	const rabbit, mail = "io.namastack.outbox.rabbit.RabbitOutboxHandler#handle(java.lang.Object,io.namastack.outbox.handler.OutboxRecordMetadata)", "shop.Mail#send(shop.OrderCreated)"
	for _, statement := range []string{
		record(second, "NEW", `{"n":  2}`, 2, rabbit), record(first, "NEW", `{"n":  1}`, 0, rabbit), record("c3", "COMPLETED", "{}", 0, rabbit), record("c4", "FAILED", "{}", 4, rabbit),
		record("c5", "NEW", "{}", 0, mail), record("c6", "unknown", "{}", 0, rabbit),
	} {
		s.Exec(statement)
	}
	r := s.request(adopt.Namastack, "outbox_record", "", "")
	s.fails(s.Conn, view(r), "also keeps rows that are no messages", "cdc-relay adopt namastack --from public.outbox_record")
	s.moves(2, r)
	s.is("0 2", "SELECT string_agg(attempts::text, ' ' ORDER BY id) FROM outbox")
	message := row{
		"message_id": first, "exchange": "outbox-events", "routing_key": "order-7", "ordering_key": "order-7", "body": `{"n":  1}`, "headers": "map[__TypeId__:shop.OrderCreated]",
		"properties": "map[content_encoding:UTF-8]", "created_at": "2026-01-01T00:00:00+00:00", "available_at": nil, "possible_duplicate": true,
	}
	s.want(message, row{"message_id": second, "available_at": "2030-01-01T00:00:00+00:00", "possible_duplicate": true})

	// A record of another handler stays, and the application marks it there.
	s.Exec("GRANT UPDATE ON outbox_record TO " + s.role)
	s.insert(record("c7", "NEW", "{}", 0, mail), "UPDATE outbox_record SET status = 'COMPLETED' WHERE id = 'c7'", record(first, "NEW", `{"n":  1}`, 0, rabbit), record("c9", "NEW", "not {json", 0, rabbit), record("c8", "NEW", "", 0, rabbit))
	message["possible_duplicate"] = nil
	s.want(message, row{"body": "bytes:not {json", "properties": "map[content_encoding:UTF-8 content_type:text/plain]"}, row{"body": "bytes:"})
	s.is("c3 c4 c5 c6 c7", "SELECT string_agg(id, ' ' ORDER BY id) FROM outbox_record")
	s.moves(1, s.request(adopt.Namastack, "outbox_record", "", "status = 'FAILED'"))
	s.moves(2, s.request(adopt.Namastack, "outbox_record", "", "all")) // not those of other handlers
	s.is("c5 c7", "SELECT string_agg(id, ' ' ORDER BY id) FROM outbox_record")
	s.works(1)
}

// The rejections of the old relay count.
func TestAttemptsAreMapped(t *testing.T) {
	s := open(t, `CREATE TABLE events (id serial PRIMARY KEY, topic text, body text, tries text)`)
	s.adopt(s.request("", "events", "routing_key=topic,payload=body,attempts=tries", ""))
	s.insert(`INSERT INTO events (topic, body, tries) VALUES ('t', '1', '3'), ('t', '2', NULL), ('t', '3', 'many')`)
	s.is("3 0 0", "SELECT string_agg(attempts::text, ' ' ORDER BY id) FROM outbox")
	s.want(row{"body": "1"}, row{"body": "2"}, row{"headers": `cdc-relay adopt: invalid input syntax for type smallint: "many"`})
	r := s.request("", "events", "routing_key=topic,payload=body,possible_duplicate=tries", "")
	if err := adopt.CheckMap(r.Map); err == nil || !strings.Contains(err.Error(), "possible_duplicate") {
		t.Errorf("possible_duplicate: got %v", err)
	}
}
