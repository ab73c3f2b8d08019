package adopt_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/adopt"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestDebeziumRowsBecomeMessages(t *testing.T) {
	s := open(t, outboxevent)
	if result := s.adopt(s.request(adopt.Debezium, "outboxevent", "", "")); !result.Attached || result.Moved != 0 {
		t.Errorf("got %+v", result)
	}
	const insert = "INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload) VALUES "
	s.insert(
		`INSERT INTO outboxevent VALUES ('`+first+`', 'Order', '42', 'OrderCreated', '2026-01-02 03:04:05+00', '{"b":  1, "a": 2}',
			E'#Fri Jan 02\ntraceparent=00-1-2-01\ntracestate=a\\=b\\:c\n')`,
		insert+`('`+second+`', 'Order', '42', 'OrderPaid', NULL)`,
		insert+`('`+first+`', 'Order', '42', 'Text', 'not {json'), ('`+second+`', 'Order', repeat('x', 255), 'Empty', '')`,
	)
	s.want(
		row{
			"message_id": first, "routing_key": "outbox.event.Order", "ordering_key": "Order:42", "body": `{"b":  1, "a": 2}`, "created_at": "2026-01-02T03:04:05+00:00",
			"properties": "map[type:OrderCreated]", "headers": "map[aggregateid:42 traceparent:00-1-2-01 tracestate:a=b:c]",
		},
		row{"message_id": second, "body": "bytes:", "properties": "map[type:OrderPaid]"},
		row{"body": "bytes:not {json", "properties": "map[content_type:text/plain type:Text]"},
		row{"ordering_key": "Order:" + strings.Repeat("x", 255), "body": "bytes:"},
	)
	s.wantEmpty("outboxevent")
}

func TestMappedColumnsBecomeMessages(t *testing.T) {
	s := open(t, `CREATE TABLE "Ev ents" ("No" serial PRIMARY KEY, "MessageId" text, "Kind" text, "From" text, body bytea, meta jsonb, prio integer, due timestamp, at date,
		"ten ant" numeric, info json)`)
	s.adopt(s.request("", `"Ev ents"`, `message_id="MessageId";exchange='shop';routing_key="Kind"||'.'||'x';ordering_key="From";payload=body;headers=meta;
		headers.tenant="ten ant";headers.info=info;properties.priority=prio;properties.content_type='application/x-avro';available_at=due;created_at=at;coalesce_key="From"`, ""))
	s.Exec("SET timezone = 'UTC'")
	s.insert("SET timezone = 'UTC'", `INSERT INTO "Ev ents" VALUES (1, '`+first+`', 'orders', 'c7', '\x00ff', '{"a": {"b": null}}', 3, '2030-01-01 00:00', '2026-01-01', 1.50, '{"t": "\u0041"}')`,
		`INSERT INTO "Ev ents" ("MessageId", "Kind", "From") VALUES ('order/7', 'orders', repeat('k', 5000)), (NULL, NULL, NULL), ('order/7', '', '')`)
	all := s.rows()
	if all[1]["message_id"] != all[3]["message_id"] || all[1]["message_id"] == all[2]["message_id"] {
		t.Errorf("an id that is no uuid becomes %v and %v", all[1]["message_id"], all[3]["message_id"])
	}
	s.want(
		row{
			"message_id": first, "exchange": "shop", "routing_key": "orders.x", "ordering_key": "c7", "coalesce_key": "c7", "body": `bytes:\000\377`,
			"headers": "map[a:map[] info:map[t:A] tenant:1.5]", "properties": "map[content_type:application/x-avro priority:3]",
			"available_at": "2030-01-01T00:00:00+00:00", "created_at": "2026-01-01T00:00:00+00:00",
		},
		row{"routing_key": "orders.x", "ordering_key": tabletest.One[string](s, "SELECT md5(repeat('k', 5000))"), "body": "bytes:", "headers": nil},
		row{"routing_key": "", "ordering_key": nil},
		row{"routing_key": ".x", "ordering_key": ""},
	)
	s.wantEmpty(`"Ev ents"`)
}

// The rejections of the old relay count.
func TestMappedColumnsSetRulesOfAMessage(t *testing.T) {
	s := open(t, `CREATE TABLE events (id serial PRIMARY KEY, topic text, body text, tries text, most text, shown jsonb, "until" timestamptz)`)
	s.adopt(s.request("", "events", "routing_key=topic;payload=body;attempts=tries;max_attempts=most;redacted_payload=shown;expires_at=until", ""))
	s.insert("SET timezone = 'UTC'", `INSERT INTO events (topic, body, tries, most, shown, "until") VALUES ('t', '1', '2', '3', '{"a": 1}', '2030-01-01'),
		('t', '2', NULL, NULL, NULL, NULL), ('t', '3', NULL, 'many', NULL, NULL), ('t', '4', 'few', NULL, NULL, NULL)`)
	s.is("2 0 0 0", "SELECT string_agg(attempts::text, ' ' ORDER BY id) FROM outbox")
	wrong := func(text string) row {
		return row{"headers": `cdc-relay adopt: invalid input syntax for type smallint: "` + text + `"`, "max_attempts": nil}
	}
	s.want(row{"body": "1", "max_attempts": 3, "redacted_payload": "map[a:1]", "expires_at": "2030-01-01T00:00:00+00:00"},
		row{"body": "2", "max_attempts": nil, "redacted_payload": nil}, wrong("many"), wrong("few"))
}

// The whole row is kept. The relay makes it a dead letter, because headers must be an object.
func TestAnUnconvertibleRowBecomesADeadLetter(t *testing.T) {
	s := open(t, `CREATE TABLE events (id serial PRIMARY KEY, topic text, body text, meta text, prio text)`)
	s.adopt(s.request("", "events", "routing_key=topic;payload=body;headers=meta;properties.priority=prio", ""))
	s.insert(`INSERT INTO events (topic, body, meta) VALUES ('t', '{}', '{"a": "\u0000"}'), ('t', '{}', 'secret{'), ('t', '{}', '[1]')`,
		`INSERT INTO events (topic, body, prio) VALUES ('t', '{}', 'high')`)
	for i, got := range s.rows() {
		if headers, isText := got["headers"].(string); i != 2 && (!isText || !strings.HasPrefix(headers, "cdc-relay adopt: ") || !strings.Contains(got["body"].(string), `"topic":"t"`)) {
			t.Errorf("row %d: got %v", i, got)
		}
	}
	s.want(row{}, row{}, row{"headers": "[1]"}, row{"routing_key": "t"})
}

func TestCeleryRowsBecomeMessages(t *testing.T) {
	s := open(t, celeryOutbox)
	s.adopt(s.request(adopt.CeleryOutbox, "celery_outbox", "queue='default'", ""))
	const insert = "INSERT INTO celery_outbox (created_at, retries, task_id, task_name, args, kwargs, options, sentry_trace_id, redacted_kwargs, schema_version) VALUES "
	s.insert("SET timezone = 'UTC'",
		insert+`('2026-01-01 00:00Z', 0, '`+first+`', 'shop.add', '[1, 2]', '{"x": "secret"}', '{"queue": "math", "eta": "2030-01-01T00:00:00+00:00", "expires": 60, "priority": 3,
			"link": [{"task": "shop.next"}], "time_limit": 9, "group_id": "g"}', 'trace', '{"x": "***"}', 1)`,
		insert+`(now(), 0, 'my-id', 'shop.add', '[]', '{}', '{}', NULL, NULL, 1)`,
		insert+`(now(), 0, '`+second+`', 'shop.add', '[]', '{}', '{"exchange": "tasks", "routing_key": "rk"}', NULL, NULL, 1)`,
		insert+`(now(), 0, '`+second+`', 'shop.add', '[]', '{}', '{"eta": "soon"}', NULL, NULL, 1)`,
		insert+`(now(), 0, '`+second+`', 'shop.add', '[]', '{}', '{}', NULL, NULL, 2)`)
	all := s.rows()
	headers, _ := all[0]["headers"].(map[string]any)
	for key, wanted := range map[string]string{
		"task": "shop.add", "id": first, "root_id": first, "group": "g", "timelimit": "[9 <nil>]", "retries": "0",
		"sentry-trace": "trace", "kwargsrepr": `{"x": "***"}`, "eta": "<nil>",
	} {
		if fmt.Sprint(headers[key]) != wanted {
			t.Errorf("header %s is %v, want %s", key, headers[key], wanted)
		}
	}
	s.want(
		row{
			"message_id": first, "exchange": "", "routing_key": "math", "available_at": "2030-01-01T00:00:00+00:00",
			"body":             `[[1, 2], {"x": "secret"}, {"callbacks" : [{"task": "shop.next"}], "errbacks" : null, "chain" : null, "chord" : null}]`,
			"redacted_payload": "[[1 2] map[x:***]]", "properties": "map[content_encoding:utf-8 content_type:application/json correlation_id:" + first + " priority:3]",
		},
		row{"routing_key": "default"},
		row{"exchange": "tasks", "routing_key": "rk"},
		row{"headers": `cdc-relay adopt: invalid input syntax for type timestamp with time zone: "soon"`},
		row{"headers": "cdc-relay adopt: schema_version 2 of a task is not known"},
	)
	s.wantEmpty("celery_outbox")
}

// The old relay retries some rows, has others in flight, and counts a numeric expires from the time of publishing.
func TestCeleryRowsThatWaitKeepTheirState(t *testing.T) {
	s := open(t, celeryOutbox)
	for i, values := range []string{
		`NULL, 0, NULL, '{}'`,
		`now(), 0, NULL, '{}'`,
		`now(), 3, '2031-01-01 00:00Z', '{"eta": "2030-01-01T00:00:00+00:00"}'`,
		`now(), 3, '2029-01-01 00:00Z', '{"eta": "2030-01-01T00:00:00+00:00"}'`,
		`now(), 1, '0001-01-01 00:00Z', '{}'`,
		`NULL, 0, NULL, '{"expires": 60}'`,
		`NULL, 0, NULL, '{"expires": 0.5}'`,
		`NULL, 0, NULL, '{"expires": "2026-01-01T00:00:00+00:00"}'`,
		`now(), 2, 'infinity', '{"eta": "soon"}'`,
	} {
		s.Exec(fmt.Sprintf(`INSERT INTO celery_outbox (created_at, task_id, task_name, args, kwargs, schema_version, updated_at, retries, retry_after, options)
			VALUES ('2026-01-01 00:00Z', 'id-%d', 'shop.add', '[]', '{}', 1, %s)`, i, values))
	}
	s.moves(9, s.request(adopt.CeleryOutbox, "celery_outbox", "", ""))
	// Attempts, mark, year and expiry: in seconds from now, or the text of a time.
	s.is("0 f, 0 t, 3 t 2031, 3 t 2030, 1 t 1, 0 f later, 0 f later, 0 f 2026-01-01, 0 t", `SELECT string_agg(concat_ws(' ', attempts, coalesce(possible_duplicate, false), extract(year FROM available_at AT TIME ZONE 'UTC'),
		CASE WHEN expires_at > now() - interval '1 hour' THEN CASE WHEN expires_at <= now() + interval '1 minute' THEN 'later' END ELSE expires_at::date::text END), ', ' ORDER BY id) FROM outbox`)
	s.Exec("DELETE FROM outbox")
	s.insert(`INSERT INTO celery_outbox (created_at, task_id, task_name, args, kwargs, options, retries, schema_version)
		VALUES (now(), 'new', 'shop.add', '[]', '{}', '{}', 0, 1)`)
	s.want(row{"possible_duplicate": nil})
}

// The route of a task has a queue and a priority.
func TestCeleryTasksGoWhereCeleryRoutesThem(t *testing.T) {
	s := open(t, celeryOutbox)
	s.adopt(s.request(adopt.CeleryOutbox, "celery_outbox",
		`queue=CASE WHEN task = 'shop.mail.send' THEN 'mail' WHEN task LIKE 'shop.%' THEN 'shop' WHEN task LIKE '%.slow' THEN 'it''s $slow$' ELSE 'rest' END -- others;
		priority=CASE WHEN task = 'mail.send' THEN 9 WHEN task LIKE 'mail.%' THEN 5 END`, ""))
	for _, c := range []struct{ task, options, goes string }{ // exchange, queue and priority
		{"shop.add", `{}`, " shop"},
		{"shop.mail.send", `{}`, " mail"},
		{"shop.mail.send2", `{}`, " shop"},
		{"other", `{}`, " rest"},
		{"x.slow", `{}`, " it's $slow$"},
		{"other", `{"route_name": "shop.x"}`, " shop"},
		{"shop.add", `{"queue": "math"}`, " math"},
		{"shop.add", `{"queue": ""}`, " shop"},
		{"shop.add", `{"exchange": "tasks", "routing_key": "rk"}`, "tasks rk"},
		{"shop.add", `{"queue": "math", "exchange": "tasks", "routing_key": "rk"}`, "tasks rk"},
		{"shop.add", `{"exchange": "tasks"}`, " shop"},                  // as Celery does
		{"shop.add", `{"routing_key": "rk"}`, " shop"},                  // as Celery does
		{"shop.add", `{"exchange": "", "routing_key": "rk"}`, " shop"},  // as Celery does
		{"shop.add", `{"queue": "math", "exchange": "tasks"}`, " math"}, // as Celery does
		{"mail.list", `{}`, " rest 5"},
		{"mail.send", `{}`, " rest 9"},
		{"mail.send", `{"priority": 0}`, " rest 0"},
		{"other", `{"priority": 7}`, " rest 7"},
	} {
		s.insert(fmt.Sprintf(`INSERT INTO celery_outbox (created_at, task_id, task_name, args, kwargs, options, retries, schema_version)
			VALUES (now(), 'x', '%s', '[]', '{}', '%s', 0, 1)`, c.task, c.options))
		m := s.rows()[0]
		got := fmt.Sprint(m["exchange"], " ", m["routing_key"])
		if properties, _ := m["properties"].(map[string]any); properties["priority"] != nil {
			got += fmt.Sprint(" ", properties["priority"])
		}
		if got != c.goes {
			t.Errorf("%s %s goes to %q, want %q", c.task, c.options, got, c.goes)
		}
		s.Exec("DELETE FROM outbox")
	}
}

// What the application masks for the worker's log is masked in the header, and for people.
func TestMaskedCeleryArgumentsStayMasked(t *testing.T) {
	s := open(t, celeryOutbox)
	s.adopt(s.request(adopt.CeleryOutbox, "celery_outbox", "", ""))
	for _, c := range []struct{ args, kwargs, options, argsrepr, kwargsrepr, redacted string }{
		{`NULL`, `NULL`, `{}`, `["secret"]`, `{"k": "secret"}`, `<nil>`},
		{`NULL`, `NULL`, `{"argsrepr": "(***)", "kwargsrepr": "{***}"}`, `(***)`, `{***}`, `[(***) {***}]`},
		{`NULL`, `NULL`, `{"argsrepr": "(***)"}`, `(***)`, `{"k": "secret"}`, `[(***) map[k:secret]]`},
		{`NULL`, `NULL`, `{"argsrepr": ""}`, ``, `{"k": "secret"}`, `[ map[k:secret]]`},
		{`'["*"]'`, `NULL`, `{}`, `["*"]`, `{"k": "secret"}`, `[[*] map[k:secret]]`},
		{`'["*"]'`, `'{}'`, `{"argsrepr": "(***)"}`, `(***)`, `{}`, `[[*] map[]]`},
	} {
		s.insert(`INSERT INTO celery_outbox (created_at, task_id, task_name, args, kwargs, options, retries, schema_version, redacted_args, redacted_kwargs)
			VALUES (now(), 'x', 'shop.add', '["secret"]', '{"k": "secret"}', '` + c.options + `', 0, 1, ` + c.args + `, ` + c.kwargs + `)`)
		all := s.rows()
		headers, _ := all[0]["headers"].(map[string]any)
		got := fmt.Sprint(headers["argsrepr"], headers["kwargsrepr"], all[0]["redacted_payload"])
		if want := c.argsrepr + c.kwargsrepr + c.redacted; got != want {
			t.Errorf("%s, %s, %s: got %s, want %s", c.args, c.kwargs, c.options, got, want)
		}
		s.Exec("DELETE FROM outbox")
	}
}

// The table as created by the migrations of django-celery-outbox.
const celeryOutbox = `CREATE TABLE celery_outbox (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, created_at timestamptz NOT NULL, updated_at timestamptz,
	retries smallint NOT NULL, retry_after timestamptz, task_id varchar(255) NOT NULL, task_name varchar(255) NOT NULL, args jsonb NOT NULL, kwargs jsonb NOT NULL,
	options jsonb NOT NULL, sentry_trace_id varchar(512), sentry_baggage text, structlog_context text, schema_version smallint NOT NULL, redacted_args jsonb, redacted_kwargs jsonb)`

// The tables as watermill-sql creates them: its default, and the queue with a payload of type BYTEA.
const (
	watermillTopic = `CREATE TABLE watermill_orders ("offset" BIGSERIAL, "uuid" VARCHAR(36) NOT NULL, "created_at" TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
		"payload" JSON DEFAULT NULL, "metadata" JSON DEFAULT NULL, "transaction_id" xid8 NOT NULL, PRIMARY KEY ("transaction_id", "offset"))`
	watermillQueue = `CREATE TABLE watermill_jobs ("offset" SERIAL PRIMARY KEY, "uuid" VARCHAR(36) NOT NULL, "payload" BYTEA DEFAULT NULL, "metadata" JSON DEFAULT NULL,
		"acked" BOOLEAN NOT NULL DEFAULT FALSE, "created_at" TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT CURRENT_TIMESTAMP)`
)

func TestWatermillRowsBecomeMessages(t *testing.T) {
	s := open(t, watermillTopic, watermillQueue)
	s.Exec(`INSERT INTO watermill_jobs (uuid, payload, acked) VALUES ('1', '{"done": true}', true), ('2', '{"done": false}', false)`)
	s.adopt(s.request(adopt.Watermill, "watermill_orders", "ordering_key='orders'", ""))
	s.moves(1, s.request(adopt.Watermill, "watermill_jobs", "", ""))
	s.want(row{"routing_key": "jobs", "body": `{"done": false}`, "headers": "map[_watermill_message_uuid:2]"})
	s.is(1, "SELECT count(*) FROM watermill_jobs")
	s.insert(
		`INSERT INTO watermill_orders (uuid, payload, metadata, transaction_id) VALUES ('`+first+`', '{"n":  1}', '{"k": "v"}', pg_current_xact_id()),
			('c8', NULL, NULL, pg_current_xact_id())`,
		`INSERT INTO watermill_orders (uuid, payload, metadata, transaction_id) VALUES ('outer',
			'{"destination_topic":"ship","uuid":"`+second+`","payload":"eyJuIjogMn0=","metadata":{"_watermill_delayed_until":"2030-01-01T00:00:00Z"}}', '{}', pg_current_xact_id())`,
		`INSERT INTO watermill_jobs (uuid, payload, metadata) VALUES ('a', '\xff00', '{}'), ('b', convert_to('{"destination_topic":"bin","uuid":"u","payload":"/wA=","metadata":null}', 'UTF8'), '{}')`)
	s.want(
		row{"message_id": first, "routing_key": "orders", "ordering_key": "orders", "body": `{"n":  1}`, "headers": "map[_watermill_message_uuid:" + first + " k:v]"},
		row{"body": "bytes:", "headers": "map[_watermill_message_uuid:c8]"},
		row{"message_id": second, "routing_key": "ship", "body": `{"n": 2}`, "available_at": "2030-01-01T00:00:00+00:00"},
		row{"routing_key": "jobs", "body": `bytes:\377\000`},
		row{"routing_key": "bin", "body": `bytes:\377\000`, "headers": "map[_watermill_message_uuid:u]"},
	)
	s.wantEmpty("watermill_orders")
}

// A JSON null is no headers, as a null is. Watermill writes one for a message that was made without NewMessage.
func TestAJSONNullMeansNoHeaders(t *testing.T) {
	s := open(t, watermillTopic, `CREATE TABLE events (id serial PRIMARY KEY, body text, meta jsonb, props text)`)
	s.adopt(s.request(adopt.Watermill, "watermill_orders", "", ""))
	s.adopt(s.request("", "events", "routing_key='t';payload=body;headers=meta;properties=props", ""))
	s.insert(`INSERT INTO watermill_orders (uuid, payload, metadata, transaction_id) VALUES ('c8', '1', 'null', pg_current_xact_id())`,
		`INSERT INTO events (body, meta, props) VALUES ('text', 'null', 'null')`)
	s.want(row{"body": "1", "headers": "map[_watermill_message_uuid:c8]"},
		row{"body": "bytes:text", "headers": nil, "properties": "map[content_type:text/plain]"})
}

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
	wrong := row{"exchange": "cap.default.router", "headers": "cdc-relay adopt: invalid input syntax for type json"}
	dead := row{"exchange": "cap.default.router", "headers": "cdc-relay adopt: Content has no Headers"}
	s.want(row{"message_id": id, "body": `{"n":  1}`, "headers": "map[cap-msg-id:7]", "possible_duplicate": nil}, row{"body": `"text"`, "headers": "map[a:b]"}, row{"body": "bytes:", "headers": nil}, row{},
		wrong, dead, dead, dead, row{"headers": `cdc-relay adopt: invalid input syntax for type interval: "soon"`, "available_at": nil}, wrong)
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

// Before its version 1.0, the application itself sent the messages.
func TestAnOlderTableOfNamastackIsNamed(t *testing.T) {
	s := open(t, `CREATE TABLE outbox_record (id VARCHAR(255) NOT NULL, status VARCHAR(20) NOT NULL, aggregate_id VARCHAR(255) NOT NULL, event_type VARCHAR(255) NOT NULL, payload TEXT NOT NULL,
		created_at TIMESTAMP WITH TIME ZONE NOT NULL, completed_at TIMESTAMP WITH TIME ZONE, retry_count INT NOT NULL, next_retry_at TIMESTAMP WITH TIME ZONE NOT NULL, PRIMARY KEY (id))`)
	s.Exec("INSERT INTO outbox_record VALUES ('" + first + "', 'NEW', 'order-7', 'shop.OrderCreated', '{\"n\":  1}', '2026-01-01 00:00Z', NULL, 2, '2030-01-01 00:00Z')")
	r := s.request(adopt.Namastack, "outbox_record", "", "")
	s.fails(s.Conn, r, "table public.outbox_record has a column retry_count: it is of an older version of namastack", `cdc-relay adopt --from public.outbox_record --set routing_key=aggregate_id `)
	_, err := adopt.Adopt(t.Context(), s.Conn, r)
	s.fails(s.Conn, s.request(adopt.Namastack, "outbox_record", "routing_key=event_type", ""), "of an older version", "")
	set := regexp.MustCompile(`--set (?:"([^"]+)"|(\S+))`).FindAllStringSubmatch(problem.Hint(err), -1)
	r.Layout, r.Waiting = "", "status = 'NEW'"
	for _, m := range set {
		r.Set = append(r.Set, m[1]+m[2])
	}
	s.moves(1, r)
	s.want(row{"message_id": first, "routing_key": "order-7", "ordering_key": "order-7", "headers": "map[__TypeId__:shop.OrderCreated]", "body": `{"n":  1}`, "available_at": "2030-01-01T00:00:00+00:00"})
}
