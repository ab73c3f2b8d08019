package adopt_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/adopt"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestMain(m *testing.M) { services.Main(m) }

// shop is a database with an outbox, and a role that may only INSERT into the tables of the application.
type shop struct {
	t          *testing.T
	url        string
	owner, app *pgx.Conn
	role       string
	outbox     outbox.Table
}

func open(t *testing.T, tables ...string) *shop {
	t.Helper()
	s := &shop{t: t, url: tabletest.Database(t), role: services.Name(t), outbox: outbox.Table{Schema: "public", Name: "outbox"}}
	s.owner = connect(t, s.url)
	for _, table := range tables {
		s.exec(table)
	}
	s.exec("CREATE ROLE " + s.role + " LOGIN PASSWORD 's3cr3t'; GRANT USAGE ON SCHEMA public TO " + s.role)
	s.exec("DO $$ DECLARE t text; BEGIN FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename !~ '^outbox(_migrations|_dead_letter)?$' " +
		"LOOP EXECUTE format('GRANT SELECT, INSERT, DELETE ON %I TO " + s.role + "', t); END LOOP; END $$; GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO " + s.role)
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), s.url)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close(context.Background()) //nolint:errcheck // at the end
		if _, err := conn.Exec(context.Background(), "DROP OWNED BY "+s.role+"; DROP ROLE "+s.role); err != nil {
			t.Error(err)
		}
	})
	address, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	address.User = url.UserPassword(s.role, "s3cr3t")
	s.app = connect(t, address.String())
	return s
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) }) //nolint:errcheck // at the end
	return conn
}

func (s *shop) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.owner.Exec(s.t.Context(), sql, args...); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

// insert runs statements of the application, in one transaction each.
func (s *shop) insert(statements ...string) {
	s.t.Helper()
	for _, sql := range statements {
		if _, err := s.app.Exec(s.t.Context(), sql); err != nil {
			s.t.Fatalf("%s: %v", sql, err)
		}
	}
}

func value[T any](s *shop, sql string, args ...any) T {
	s.t.Helper()
	var v T
	if err := s.owner.QueryRow(s.t.Context(), sql, args...).Scan(&v); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// request parses the table name as the command does.
func (s *shop) request(layout, from, mapping, waiting string) adopt.Request {
	s.t.Helper()
	table, err := outbox.ParseName(from)
	if err != nil {
		s.t.Fatal(err)
	}
	return adopt.Request{Outbox: s.outbox, Layout: layout, From: table, Map: mapping, Waiting: waiting}
}

func (s *shop) adopt(r adopt.Request) adopt.Result {
	s.t.Helper()
	conn := connect(s.t, s.url)
	defer conn.Close(s.t.Context()) //nolint:errcheck // at the end
	result, err := adopt.Adopt(s.t.Context(), conn, r)
	if err != nil {
		s.t.Fatalf("adopt %s: %v (%s)", r.From, err, problem.Hint(err))
	}
	return result
}

// rows returns the messages as JSON, without random values.
func (s *shop) rows() []map[string]any {
	s.t.Helper()
	rows, err := s.owner.Query(s.t.Context(), `SELECT (jsonb_strip_nulls(to_jsonb(o) - '{id,attempts,schema_version,payload,payload_bytes}'::text[])
		|| jsonb_build_object('body', coalesce(payload::text, 'bytes:' || encode(payload_bytes, 'escape'), 'none')))::text FROM outbox o ORDER BY id`)
	if err != nil {
		s.t.Fatal(err)
	}
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.t.Fatal(err)
	}
	all := make([]map[string]any, len(texts))
	for i, text := range texts {
		if err := json.Unmarshal([]byte(text), &all[i]); err != nil {
			s.t.Fatal(err)
		}
	}
	return all
}

// want compares these columns of the messages, and "body".
func (s *shop) want(wanted ...map[string]any) {
	s.t.Helper()
	got := s.rows()
	if len(got) != len(wanted) {
		s.t.Fatalf("%d messages, want %d: %v", len(got), len(wanted), got)
	}
	for i, w := range wanted {
		for column, v := range w {
			if fmt.Sprint(got[i][column]) != fmt.Sprint(v) {
				s.t.Errorf("message %d: %s is %v, want %v", i, column, got[i][column], v)
			}
		}
	}
	s.exec("DELETE FROM outbox")
}

func (s *shop) wantEmpty(table string) {
	s.t.Helper()
	if n := value[int](s, "SELECT count(*) FROM "+table); n != 0 {
		s.t.Errorf("%d rows are left in %s", n, table)
	}
}

type row = map[string]any

const (
	// debezium.io, "Outbox Event Router", and the columns of the Quarkus extension.
	outboxevent = `CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL,
		timestamp timestamptz NOT NULL DEFAULT now(), payload varchar(8000), tracingspancontext varchar(256))`
	simplest = `CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb)`
	events   = `CREATE TABLE events (id bigserial PRIMARY KEY, topic text, customer text, body text, sent_at timestamptz)`
	eventMap = "routing_key=topic,ordering_key=customer,payload=body,message_id=id"
	first    = "00000000-0000-4000-8000-000000000001"
	second   = "00000000-0000-4000-8000-000000000002"
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

// The application's results stay the same, and no body makes its transaction fail.
func TestTheApplicationNeedsNoChange(t *testing.T) {
	s := open(t, simplest)
	s.adopt(s.request(adopt.Debezium, "outboxevent", "routing_key=type", ""))
	values := func(id string) string { return "('" + id + "', 'Order', '42', 'OrderCreated', '{\"n\": 1}')" }
	var id string
	if err := s.app.QueryRow(t.Context(), "INSERT INTO outboxevent VALUES "+values(first)+" RETURNING id::text").Scan(&id); err != nil || id != first {
		t.Errorf("RETURNING: %s, %v", id, err)
	}
	s.want(row{"message_id": first, "routing_key": "OrderCreated"})

	tag, err := s.app.Exec(t.Context(), "INSERT INTO outboxevent VALUES "+values(first)+", "+values(second)+", "+values(first)+" ON CONFLICT DO NOTHING")
	if err != nil || tag.RowsAffected() != 2 {
		t.Errorf("ON CONFLICT: %d rows, %v", tag.RowsAffected(), err)
	}
	s.want(row{"message_id": first}, row{"message_id": second})

	err = pgx.BeginFunc(t.Context(), s.app, func(tx pgx.Tx) error { // as Debezium's extension for Quarkus does
		if _, err := tx.Exec(t.Context(), "INSERT INTO outboxevent VALUES "+values(first)); err != nil {
			return err
		}
		tag, err := tx.Exec(t.Context(), "DELETE FROM outboxevent WHERE id = $1", first)
		if tag.RowsAffected() != 1 {
			t.Errorf("the application deleted %d rows", tag.RowsAffected())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	s.want(row{"message_id": first})

	s.insert("BEGIN; INSERT INTO outboxevent VALUES " + values(first) + "; ROLLBACK")
	s.want()
	_, err = s.app.CopyFrom(t.Context(), pgx.Identifier{"outboxevent"}, []string{"id", "aggregatetype", "aggregateid", "type", "payload"},
		pgx.CopyFromRows([][]any{{first, "Order", "42", "T", `{}`}, {second, "Order", "42", "T", nil}}))
	if err != nil {
		t.Error(err)
	}
	s.want(row{"message_id": first}, row{"message_id": second, "body": "bytes:"})
	s.wantEmpty("outboxevent")
}

// A message has the state of its row at COMMIT, also if the application changed the row after it inserted it.
func TestTheStateAtCommitIsSent(t *testing.T) {
	s := open(t, `CREATE TABLE events (id int, at date DEFAULT '2026-01-01', topic text, body text, prio text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)`,
		`CREATE TABLE events_now (body text, prio text, topic text, at date NOT NULL, id int NOT NULL)`,
		`ALTER TABLE events ATTACH PARTITION events_now FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')`, outboxevent)
	s.exec("GRANT UPDATE ON events, outboxevent TO " + s.role)
	s.adopt(s.request("", "events", "routing_key=topic,payload=body,properties.priority=prio", ""))
	s.adopt(s.request(adopt.Debezium, "outboxevent", "", ""))
	const upsert = " ON CONFLICT (id, at) DO UPDATE SET body = excluded.body"
	s.insert(
		"BEGIN; INSERT INTO events (id, topic, body) VALUES (1, 't', '{\"total\": 0}'), (2, 't', '2'); UPDATE events SET body = '{\"total\": 99}' WHERE id = 1; COMMIT",
		"BEGIN; INSERT INTO events (id, topic, body) VALUES (1, 't', '1')"+upsert+"; INSERT INTO events (id, topic, body) VALUES (1, 't', '11')"+upsert+"; COMMIT",
		"BEGIN; INSERT INTO events (id, topic, body) VALUES (1, 't', '1'); SAVEPOINT a; UPDATE events SET body = '2'; ROLLBACK TO a; COMMIT",
		"BEGIN; INSERT INTO events (id, topic, body) VALUES (1, 't', '1'); DELETE FROM events; COMMIT",
		"BEGIN; INSERT INTO events (id, topic, body) VALUES (1, 't', '1'); UPDATE events SET prio = 'high'; COMMIT", // a dead letter
		"BEGIN; INSERT INTO outboxevent VALUES ('"+first+"', 'Order', '42', 'T', now(), '1'); UPDATE outboxevent SET payload = '2'; COMMIT")
	s.want(row{"body": `{"total": 99}`}, row{"body": "2"}, row{"body": "11"}, row{"body": "1"}, row{"body": "1"},
		row{"body": `{"id":1,"at":"2026-01-01","topic":"t","body":"1","prio":"high"}`}, row{"message_id": first, "body": "2"})
	s.wantEmpty("events")
	s.wantEmpty("outboxevent")
}

// A session keeps the plan of the function, also if the table was small then and has many dead rows now.
func TestARowIsFoundByItsKey(t *testing.T) {
	s := open(t, events)
	s.adopt(s.request("", "events", eventMap, ""))
	s.exec("VACUUM ANALYZE events")
	s.insert("BEGIN", "INSERT INTO events (topic, body) SELECT 't', i FROM generate_series(1, 20) i", "SET CONSTRAINTS ALL IMMEDIATE")
	var scans int
	if err := s.app.QueryRow(t.Context(), "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'events'").Scan(&scans); err != nil || scans > 0 {
		t.Errorf("%d scans of the whole table, %v", scans, err)
	}
	s.insert("COMMIT")
	s.wantEmpty("events")
}

// Two transactions that only INSERT have nothing in common.
func TestSerializableTransactionsMayInsertAtOnce(t *testing.T) {
	s := open(t, events, simplest, `CREATE TABLE days (id bigserial, at date, topic text, body text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
		CREATE TABLE day1 PARTITION OF days FOR VALUES FROM ('2026-01-01') TO ('2026-01-02'); CREATE TABLE day2 PARTITION OF days FOR VALUES FROM ('2026-01-02') TO ('2026-01-03')`)
	s.adopt(s.request("", "events", eventMap, ""))
	s.adopt(s.request(adopt.Debezium, "outboxevent", "", ""))
	s.adopt(s.request("", "days", "routing_key=topic,payload=body", ""))
	// Each one inserts after the trigger of the one before has run. The last one commits first.
	sessions := []*shop{s, {t: t, app: connect(t, s.app.Config().ConnString())}, {t: t, app: connect(t, s.app.Config().ConnString())}}
	for _, session := range sessions {
		session.insert("BEGIN ISOLATION LEVEL SERIALIZABLE", "SELECT", "INSERT INTO events (topic, body) SELECT 't', i FROM generate_series(1, 3) i",
			"INSERT INTO outboxevent SELECT gen_random_uuid(), 'Order', '42', 'T', to_jsonb(i) FROM generate_series(4, 6) i",
			"INSERT INTO days (at, topic, body) VALUES ('2026-01-01', 't', '7'), ('2026-01-02', 't', '8')", "SET CONSTRAINTS ALL IMMEDIATE")
	}
	for _, session := range []*shop{sessions[2], sessions[0], sessions[1]} {
		session.insert("COMMIT")
	}
	if got := value[string](s, "SELECT string_agg(payload::text, ' ' ORDER BY id) FROM outbox"); got != strings.TrimSpace(strings.Repeat("1 2 3 4 5 6 7 8 ", 3)) {
		t.Errorf("got %s", got)
	}
	for _, table := range []string{"events", "outboxevent", "days"} {
		s.wantEmpty(table)
	}
}

// Sessions of the application stay open while a migration changes the types of columns.
func TestColumnsMayChangeTheirTypes(t *testing.T) {
	s := open(t, `CREATE TABLE events (id int PRIMARY KEY, topic varchar(20), body json, n int)`)
	s.adopt(s.request("", "events", "routing_key=topic,payload=body,headers.n=n", ""))
	s.insert(`INSERT INTO events VALUES (1, 't', '{"a":  1}', 1)`)
	s.exec("ALTER TABLE events ALTER id TYPE bigint, ALTER topic TYPE text, ALTER n TYPE bigint")
	s.insert(`INSERT INTO events VALUES (2, 't', '{"a":  2}', 2), (3, 't', '{"a":  3}', 3)`)
	s.exec("ALTER TABLE events ALTER body TYPE jsonb, ADD extra text DEFAULT 'x'")
	s.insert(`INSERT INTO events VALUES (4, 't', '{"a":  4}', 4)`)
	s.want(row{"routing_key": "t", "body": `{"a":  1}`, "headers": "map[n:1]"}, row{"routing_key": "t", "body": `{"a":  2}`, "headers": "map[n:2]"},
		row{"routing_key": "t", "body": `{"a":  3}`, "headers": "map[n:3]"}, row{"routing_key": "t", "body": `{"a": 4}`, "headers": "map[n:4]"})
	s.wantEmpty("events")
}

func TestMappedColumnsBecomeMessages(t *testing.T) {
	s := open(t, `CREATE TABLE "Ev ents" ("No" serial PRIMARY KEY, "MessageId" text, "Kind" text, "From" text, body bytea, meta jsonb, prio integer, due timestamp, at date,
		"ten ant" numeric, info json)`)
	s.adopt(s.request("", `"Ev ents"`, `message_id=MessageId,exchange='shop',routing_key=kind||'.'||'x',ordering_key="From",payload=body,headers=meta,
		headers.tenant="ten ant",headers.info=info,properties.priority=prio,properties.content_type='application/x-avro',available_at=due,created_at=at,coalesce_key="From"`, ""))
	s.exec("SET timezone = 'UTC'")
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
		row{"routing_key": "orders.x", "ordering_key": value[string](s, "SELECT md5(repeat('k', 5000))"), "body": "bytes:", "headers": nil},
		row{"routing_key": "", "ordering_key": nil},
		row{"routing_key": ".x", "ordering_key": ""},
	)
	s.wantEmpty(`"Ev ents"`)
}

func TestMappedColumnsSetRulesOfAMessage(t *testing.T) {
	s := open(t, `CREATE TABLE events (id serial PRIMARY KEY, topic text, body text, tries text, shown jsonb, "until" timestamptz)`)
	s.adopt(s.request("", "events", "routing_key=topic,payload=body,max_attempts=tries,redacted_payload=shown,expires_at=until", ""))
	s.insert("SET timezone = 'UTC'", `INSERT INTO events (topic, body, tries, shown, "until") VALUES ('t', '1', '3', '{"a": 1}', '2030-01-01'), ('t', '2', NULL, NULL, NULL), ('t', '3', 'many', NULL, NULL)`)
	s.want(row{"body": "1", "max_attempts": 3, "redacted_payload": "map[a:1]", "expires_at": "2030-01-01T00:00:00+00:00"}, row{"body": "2", "max_attempts": nil, "redacted_payload": nil},
		row{"headers": `cdc-relay adopt: invalid input syntax for type smallint: "many"`, "max_attempts": nil})
}

// The whole row is kept. The relay makes it a dead letter, because headers must be an object.
func TestAnUnconvertibleRowBecomesADeadLetter(t *testing.T) {
	s := open(t, `CREATE TABLE events (id serial PRIMARY KEY, topic text, body text, meta text, prio text)`)
	s.adopt(s.request("", "events", "routing_key=topic,payload=body,headers=meta,properties.priority=prio", ""))
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
	s.adopt(s.request(adopt.CeleryOutbox, "celery_outbox", "routing_key='default'", ""))
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
		s.exec(fmt.Sprintf(`INSERT INTO celery_outbox (created_at, task_id, task_name, args, kwargs, schema_version, updated_at, retries, retry_after, options)
			VALUES ('2026-01-01 00:00Z', 'id-%d', 'shop.add', '[]', '{}', 1, %s)`, i, values))
	}
	if result := s.adopt(s.request(adopt.CeleryOutbox, "celery_outbox", "", "")); result.Moved != 9 {
		t.Errorf("moved %d", result.Moved)
	}
	// In seconds from now, or the text of a time.
	rows, err := s.owner.Query(t.Context(), `SELECT concat_ws(' ', attempts, coalesce(possible_duplicate, false), extract(year FROM available_at AT TIME ZONE 'UTC'),
		CASE WHEN expires_at > now() - interval '1 hour' THEN CASE WHEN expires_at <= now() + interval '1 minute' THEN 'later' END ELSE expires_at::date::text END)
		FROM outbox ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"0 f", "0 t", "3 t 2031", "3 t 2030", "1 t 1", "0 f later", "0 f later", "0 f 2026-01-01", "0 t"}
	if !slices.Equal(got, want) {
		t.Errorf("attempts, mark, year, expiry: got %q, want %q", got, want)
	}
	s.exec("DELETE FROM outbox")
	s.insert(`INSERT INTO celery_outbox (created_at, task_id, task_name, args, kwargs, options, retries, schema_version)
		VALUES (now(), 'new', 'shop.add', '[]', '{}', '{}', 0, 1)`)
	s.want(row{"possible_duplicate": nil})
}

// A row of another table that waited may have been published by its old relay; a new row is published by ours only.
func TestOnlyRowsThatWaitedMayBeDuplicates(t *testing.T) {
	s := open(t, events)
	s.exec(`INSERT INTO events (topic, body) VALUES ('a', '1')`)
	s.adopt(s.request("", "events", "routing_key=topic,payload=body", "sent_at IS NULL"))
	s.insert(`INSERT INTO events (topic, body) VALUES ('b', '2')`)
	s.want(row{"routing_key": "a", "possible_duplicate": true}, row{"routing_key": "b", "possible_duplicate": nil})
}

func TestCeleryTasksGoWhereCeleryRoutesThem(t *testing.T) {
	s := open(t, celeryOutbox)
	s.adopt(s.request(adopt.CeleryOutbox, "celery_outbox",
		`task_routes.shop.*='shop',task_routes.shop.mail.send='mail',task_routes.a_b.*='under',task_routes.*.slow='it''s $slow$',routing_key='rest'`, ""))
	for i, c := range []struct{ task, options, exchange, queue string }{
		{"shop.add", `{}`, "", "shop"},
		{"shop.mail.send", `{}`, "", "mail"}, // a complete name, though listed later
		{"shop.mail.send2", `{}`, "", "shop"},
		{"other", `{}`, "", "rest"},
		{"axb.c", `{}`, "", "rest"}, // _ is no wildcard
		{"a_b.c", `{}`, "", "under"},
		{"x.slow", `{}`, "", "it's $slow$"},
		{"other", `{"route_name": "shop.x"}`, "", "shop"},
		{"shop.add", `{"queue": "math"}`, "", "math"},
		{"shop.add", `{"queue": ""}`, "", "shop"},
		{"shop.add", `{"exchange": "tasks", "routing_key": "rk"}`, "tasks", "rk"},
		{"shop.add", `{"queue": "math", "exchange": "tasks", "routing_key": "rk"}`, "tasks", "rk"},
		{"shop.add", `{"exchange": "tasks"}`, "", "shop"},                  // as Celery does
		{"shop.add", `{"routing_key": "rk"}`, "", "shop"},                  // as Celery does
		{"shop.add", `{"exchange": "", "routing_key": "rk"}`, "", "shop"},  // as Celery does
		{"shop.add", `{"queue": "math", "exchange": "tasks"}`, "", "math"}, // as Celery does
	} {
		s.insert(fmt.Sprintf(`INSERT INTO celery_outbox (created_at, task_id, task_name, args, kwargs, options, retries, schema_version)
			VALUES (now(), 'id-%d', '%s', '[]', '{}', '%s', 0, 1)`, i, c.task, c.options))
		all := s.rows()
		if got := fmt.Sprint(all[len(all)-1]["exchange"], " ", all[len(all)-1]["routing_key"]); got != c.exchange+" "+c.queue {
			t.Errorf("%s %s goes to %q, want %q", c.task, c.options, got, c.exchange+" "+c.queue)
		}
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
		s.exec("DELETE FROM outbox")
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
	s.exec(`INSERT INTO watermill_jobs (uuid, payload, acked) VALUES ('1', '{"done": true}', true), ('2', '{"done": false}', false)`)
	s.adopt(s.request(adopt.Watermill, "watermill_orders", "ordering_key='orders'", ""))
	if result := s.adopt(s.request(adopt.Watermill, "watermill_jobs", "", "")); result.Moved != 1 {
		t.Errorf("moved %d", result.Moved)
	}
	s.want(row{"routing_key": "jobs", "body": `{"done": false}`, "headers": "map[_watermill_message_uuid:2]"})
	if n := value[int](s, "SELECT count(*) FROM watermill_jobs"); n != 1 {
		t.Errorf("%d rows are left, want the one that was sent", n)
	}
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
	s.adopt(s.request("", "events", "routing_key='t',payload=body,headers=meta,properties=props", ""))
	s.insert(`INSERT INTO watermill_orders (uuid, payload, metadata, transaction_id) VALUES ('c8', '1', 'null', pg_current_xact_id())`,
		`INSERT INTO events (body, meta, props) VALUES ('text', 'null', 'null')`)
	s.want(row{"body": "1", "headers": "map[_watermill_message_uuid:c8]"},
		row{"body": "bytes:text", "headers": nil, "properties": "map[content_type:text/plain]"})
}

func TestWaitingRowsAreMoved(t *testing.T) {
	s := open(t, events)
	s.exec(`INSERT INTO events (topic, customer, body, sent_at) SELECT 't', 'c' || i % 10, i, CASE WHEN i % 2 = 0 THEN now() END FROM generate_series(1, 5000) i`)
	r := s.request("", "events", eventMap, "")
	conn := connect(t, s.url)
	if _, err := adopt.Adopt(t.Context(), conn, r); err == nil || !strings.Contains(err.Error(), "nothing says which of them are still to be sent") {
		t.Fatalf("got %v", err)
	}
	r.Waiting = "sent_a IS NULL"
	if _, err := adopt.Adopt(t.Context(), conn, r); err == nil || !strings.Contains(problem.Hint(err), "id, topic, customer, body, sent_at") {
		t.Fatalf("got %v, %s", err, problem.Hint(err))
	}
	r.Waiting = "sent_at IS NULL"

	// The application writes meanwhile: no row is lost or duplicated, and the order stays.
	stop, done := make(chan struct{}), make(chan int, 1)
	go func() {
		n := 5001
		defer func() { done <- n }()
		for ; ; n += 2 {
			if _, err := s.app.Exec(t.Context(), "INSERT INTO events (topic, customer, body) VALUES ('t', 'c' || $1 % 10, $1::text)", n); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	result := s.adopt(r)
	await.Until(t, "rows come by the trigger", func() bool {
		return value[int](s, "SELECT count(*) FROM outbox") > int(result.Moved)+10
	})
	close(stop)
	last := <-done
	if result.Moved < 2500 {
		t.Errorf("moved %d rows", result.Moved)
	}
	if got, wanted := value[int](s, "SELECT count(DISTINCT payload::text) FROM outbox"), (last+1)/2; got != wanted {
		t.Errorf("%d different messages, want %d", got, wanted)
	}
	if twice := value[int](s, "SELECT count(*) - count(DISTINCT message_id) FROM outbox"); twice != 0 {
		t.Errorf("%d messages exist twice", twice)
	}
	if value[bool](s, "SELECT bool_or(n < before) FROM (SELECT payload::text::bigint AS n, lag(payload::text::bigint) OVER (PARTITION BY ordering_key ORDER BY id) AS before FROM outbox) o") {
		t.Error("the order of a key has changed")
	}
	if left := value[int](s, "SELECT count(*) FROM events WHERE sent_at IS NULL"); left != 0 {
		t.Errorf("%d rows are left", left)
	}
	if again := s.adopt(r); again.Moved != 0 || again.Attached {
		t.Errorf("again: %+v", again)
	}
	if sent := value[int](s, "SELECT count(*) FROM events"); sent != 2500 {
		t.Errorf("%d rows that were sent before are left, want 2500", sent)
	}
}

// After an interruption each row is in exactly one table; a second adopt moves the rest.
func TestAnInterruptedMoveContinues(t *testing.T) {
	s := open(t, events)
	s.exec(`INSERT INTO events (topic, body) SELECT 't', i FROM generate_series(1, 20000) i`)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	conn := connect(t, s.url)
	go func() {
		_, err := adopt.Adopt(ctx, conn, s.request("", "events", eventMap, "all"))
		ended <- err
	}()
	await.Until(t, "a part is moved", func() bool { return value[bool](s, "SELECT EXISTS (SELECT FROM outbox)") })
	cancel()
	if err := await.Receive(t, "the end", ended); err == nil {
		t.Fatal("the move was not interrupted")
	}
	if n := value[int](s, "SELECT (SELECT count(*) FROM outbox) + (SELECT count(*) FROM events)"); n != 20000 {
		t.Errorf("%d rows in both tables, want 20000", n)
	}
	s.adopt(s.request("", "events", eventMap, "all"))
	if n := value[int](s, "SELECT count(DISTINCT payload::text) FROM outbox"); n != 20000 || value[int](s, "SELECT count(*) FROM outbox") != n {
		t.Errorf("%d different messages, want 20000", n)
	}
	s.wantEmpty("events")
}

func TestAPartitionedTableIsAdopted(t *testing.T) {
	s := open(t, `CREATE TABLE events (id int, at date, topic text, body text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)`,
		`CREATE TABLE events_old (topic text, body text, at date NOT NULL, id int NOT NULL)`,
		`ALTER TABLE events ATTACH PARTITION events_old FOR VALUES FROM ('2020-01-01') TO ('2026-01-01')`)
	s.exec(`INSERT INTO events VALUES (1, '2025-01-01', 't', '1')`)
	s.adopt(s.request("", "events", "routing_key=topic,payload=body,created_at=at", "all"))
	s.exec(`CREATE TABLE events_new PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2030-01-01')`)
	s.insert(`INSERT INTO events VALUES (2, '2025-01-01', 't', '2')`, `INSERT INTO events VALUES (3, '2027-01-01', 't', '3')`)
	s.want(row{"body": "1"}, row{"body": "2"}, row{"body": "3"})
	s.wantEmpty("events")
	if all := s.list(); len(all) != 1 || !all[0].Works() {
		t.Errorf("got %+v", all)
	}
}

func TestALockedTableIsNamed(t *testing.T) {
	s := open(t, events)
	s.insert("SET application_name = 'billing'", "BEGIN", "INSERT INTO events (topic, body) VALUES ('t', '1')")
	conn := connect(t, s.url)
	_, err := adopt.Adopt(t.Context(), conn, s.request("", "events", eventMap, ""))
	if err == nil || !strings.Contains(err.Error(), "public.events is locked by session") || !strings.Contains(err.Error(), "billing, since") {
		t.Errorf("got %v", err)
	}
	s.insert("COMMIT")
	if result := s.adopt(s.request("", "events", eventMap, "all")); result.Moved != 1 {
		t.Errorf("moved %d", result.Moved)
	}
}

func TestAViewReplacesTheTable(t *testing.T) {
	s := open(t, outboxevent, `CREATE TABLE events (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, topic text DEFAULT 'usual', body text)`)
	s.exec("GRANT INSERT, SELECT ON events TO " + s.role)
	s.exec("INSERT INTO events (body) VALUES ('1')")
	r := s.request("", "events", "routing_key=topic,payload=body,message_id=id", "all")
	r.View = true
	s.adopt(r)
	s.insert("INSERT INTO events (body) VALUES ('2')")
	var id int
	if err := s.app.QueryRow(t.Context(), "INSERT INTO events (topic, body) VALUES ('other', '3') RETURNING id").Scan(&id); err != nil || id != 3 {
		t.Errorf("RETURNING: %d, %v", id, err)
	}
	s.want(row{"routing_key": "usual", "body": "1"}, row{"routing_key": "usual", "body": "2"}, row{"routing_key": "other", "body": "3"})
	s.wantEmpty("events")
	if all := s.list(); len(all) != 1 || !all[0].Works() {
		t.Errorf("got %+v", all)
	}
	s.undo("events")
	s.insert("INSERT INTO events (body) VALUES ('4')")
	if n := value[int](s, "SELECT count(*) FROM events WHERE id = 4"); n != 1 {
		t.Error("the table was not restored")
	}
	s.want()
}

// Defaults name a sequence and a type of the schema public, which the search_path of the statements leaves out.
func TestAViewHasTheDefaultsOfItsTable(t *testing.T) {
	s := open(t, `CREATE TYPE state AS ENUM ('old', 'new')`, `CREATE TABLE events (id bigserial PRIMARY KEY, topic text DEFAULT 'usual', body text, st state DEFAULT 'new')`)
	s.exec("INSERT INTO events (body, st) VALUES ('0', 'old'), ('1', 'new')")
	r := s.request("", "events", "routing_key=topic,payload=body,headers.st=st", "st = 'new'::state")
	r.View = true
	for range 2 { // as the session's search_path must stay
		if _, err := adopt.SQL(t.Context(), s.owner, r); err == nil || !strings.Contains(err.Error(), `type "state" does not exist`) || !strings.Contains(problem.Hint(err), "with their schema") {
			t.Errorf("got %v (%s)", err, problem.Hint(err))
		}
	}
	r.Waiting = "st = 'new'::public.state"
	s.adopt(r)
	s.insert("INSERT INTO events (body) VALUES ('2')")
	s.want(row{"routing_key": "usual", "body": "1", "headers": "map[st:new]"}, row{"routing_key": "usual", "body": "2", "headers": "map[st:new]"})
	if n := value[int](s, "SELECT nextval('events_id_seq')"); n != 4 {
		t.Errorf("the next id is %d, want 4", n)
	}
}

func TestAViewHasTheGrantsOfItsTable(t *testing.T) {
	s := open(t)
	s.exec(`CREATE TABLE events (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, topic text, "B""ody" text)`)
	s.exec(`GRANT INSERT (topic, "B""ody"), SELECT (id) ON events TO ` + s.role + " WITH GRANT OPTION; GRANT SELECT (topic) ON events TO PUBLIC; GRANT DELETE ON events TO " + s.role)
	grants := func() string {
		return value[string](s, `SELECT coalesce(string_agg(format('%s %s %s %s', grantee, privilege_type, column_name, is_grantable), ', ' ORDER BY grantee, privilege_type, column_name), '')
			FROM information_schema.column_privileges WHERE table_name = 'events' AND grantee IN ($1, 'PUBLIC')`, s.role) +
			value[string](s, `SELECT string_agg(privilege_type, ',') FROM information_schema.table_privileges WHERE table_name = 'events' AND grantee = $1`, s.role)
	}
	before := grants()
	r := s.request("", "events", `routing_key=topic,payload="B""ody"`, "")
	r.View = true
	s.adopt(r)
	if after := grants(); after != before {
		t.Errorf("the view has %s, want %s", after, before)
	}
	var id int
	if err := s.app.QueryRow(t.Context(), `INSERT INTO events (topic, "B""ody") VALUES ('t', '1') RETURNING id`).Scan(&id); err != nil || id != 1 {
		t.Errorf("RETURNING: %d, %v", id, err)
	}
	s.want(row{"routing_key": "t", "body": "1"})
}

// The view is dropped, but its table was renamed: undo gives it back its name.
func TestUndoRestoresTheTableOfADroppedView(t *testing.T) {
	s := open(t, events, simplest)
	s.exec("INSERT INTO events (topic, body) VALUES ('t', '1')")
	r := s.request("", "events", eventMap, "none")
	r.View = true
	s.adopt(r)
	s.exec("DROP VIEW events")
	s.undo("events")
	if n := value[int](s, "SELECT count(*) FROM events"); n != 1 {
		t.Errorf("%d rows are in the table, want 1", n)
	}
	s.insert("INSERT INTO events (topic, body) VALUES ('t', '2')")
	s.want()
	if all := s.list(); len(all) != 0 {
		t.Errorf("got %+v", all)
	}

	r = s.request(adopt.Debezium, "outboxevent", "", "")
	r.View = true
	s.adopt(r)
	s.exec("DROP TABLE outboxevent_adopted CASCADE")
	s.undo("outboxevent")
	if all := s.list(); len(all) != 0 {
		t.Errorf("got %+v", all)
	}
}

func (s *shop) list() []adopt.Adopted {
	s.t.Helper()
	all, err := adopt.List(s.t.Context(), s.owner, s.outbox)
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

func (s *shop) undo(from string) {
	s.t.Helper()
	table := outbox.Table{Schema: "public", Name: from}
	a, err := adopt.Find(s.t.Context(), s.owner, s.outbox, &table)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := a.Undo(s.t.Context(), s.owner); err != nil {
		s.t.Fatal(err)
	}
}

// The names of two tables must not give one function: its conversion would be that of the last one.
func TestTablesOfSeveralSchemasHaveTheirOwnFunctions(t *testing.T) {
	s := open(t, "CREATE TABLE billing_events (id int PRIMARY KEY, topic text, body text)", "CREATE SCHEMA billing; CREATE TABLE billing.events (no int PRIMARY KEY, kind text, doc text)",
		"CREATE SCHEMA a; CREATE SCHEMA a_b; CREATE TABLE a.b_c (k int PRIMARY KEY, x text)",
		"CREATE TABLE a_b.c (l int PRIMARY KEY, y text)")
	for from, mapping := range map[string]string{
		"billing_events": "routing_key=topic,payload=body", "billing.events": "routing_key=kind,payload=doc", "a.b_c": "routing_key=x,payload=x", "a_b.c": "routing_key=y,payload=y",
	} {
		s.adopt(s.request("", from, mapping, ""))
	}
	s.exec("INSERT INTO billing_events VALUES (1, 't', '1')")
	s.exec("INSERT INTO billing.events VALUES (1, 'k', '2')")
	s.exec("INSERT INTO a.b_c VALUES (1, '3')")
	s.exec("INSERT INTO a_b.c VALUES (1, '4')")
	s.want(row{"routing_key": "t", "body": "1"}, row{"routing_key": "k", "body": "2"}, row{"body": "3"}, row{"body": "4"})
	all := s.list()
	if len(all) != 4 {
		t.Fatalf("got %+v", all)
	}
	for _, a := range all {
		if !a.Works() {
			t.Errorf("got %+v", a)
		}
	}
	if again := s.adopt(s.request("", "a.b_c", "routing_key=x,payload=x", "")); again.Attached {
		t.Error("a.b_c was adopted twice")
	}
}

func TestUndoRestoresTheTable(t *testing.T) {
	s := open(t, events, simplest)
	s.adopt(s.request("", "events", eventMap, ""))
	s.adopt(s.request(adopt.Debezium, "outboxevent", "", ""))
	if _, err := adopt.Find(t.Context(), s.owner, s.outbox, nil); err == nil || !strings.Contains(err.Error(), "2 tables were adopted into public.outbox: public.events, public.outboxevent") {
		t.Errorf("got %v", err)
	}
	s.undo("events")
	s.insert("INSERT INTO events (topic, body) VALUES ('t', '1')")
	s.want()
	a, err := adopt.Find(t.Context(), s.owner, s.outbox, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Undo(t.Context(), s.owner); err != nil {
		t.Fatal(err)
	}
	if n := value[int](s, "SELECT count(*) FROM pg_proc WHERE proname ~ '^outbox_from'"); n != 0 {
		t.Errorf("%d functions are left", n)
	}
	if _, err := adopt.Find(t.Context(), s.owner, s.outbox, nil); err == nil || !strings.Contains(err.Error(), "no table was adopted") {
		t.Errorf("got %v", err)
	}
	if result := s.adopt(s.request("", "events", eventMap, "all")); result.Moved != 1 {
		t.Errorf("moved %d", result.Moved)
	}
}

// Covers everything that can happen to a trigger. Check reads it.
func TestListReportsTheStateOfEachTrigger(t *testing.T) {
	s := open(t, events)
	r := s.request("", "events", eventMap, "all")
	s.adopt(r)
	state := func() adopt.Adopted {
		t.Helper()
		all := s.list()
		if len(all) != 1 {
			t.Fatalf("got %+v", all)
		}
		return all[0]
	}
	if a := state(); !a.Works() || a.Command != "cdc-relay adopt --from public.events --map "+eventMap || a.Table != r.From {
		t.Errorf("got %+v", a)
	}
	s.exec("ALTER TABLE events DISABLE TRIGGER ALL")
	if a := state(); a.Works() || !a.Trigger || a.Enabled {
		t.Errorf("disabled: %+v", a)
	}
	s.adopt(r)
	if !state().Works() {
		t.Error("adopting again enables the trigger")
	}
	s.exec("DROP TRIGGER cdc_relay_adopt ON events")
	if a := state(); a.Works() || !a.Exists || a.Trigger {
		t.Errorf("dropped: %+v", a)
	}
	s.insert("INSERT INTO events (topic, body) VALUES ('t', '1')")
	if result := s.adopt(r); result.Moved != 1 || !state().Works() {
		t.Errorf("adopted again: %+v", result)
	}
	s.exec("ALTER TABLE events DROP COLUMN customer")
	if a := state(); a.Works() || len(a.LostKey) > 0 || fmt.Sprint(a.Missing) != "[customer]" || a.Obstacle == nil || !strings.Contains(a.Obstacle.Error(), "no column customer, for ordering_key") {
		t.Errorf("without a column: %+v", a)
	}
	s.insert("INSERT INTO events (topic, body) VALUES ('t', '2')") // it becomes a dead letter, without an error
	s.exec("DROP TABLE events")
	if a := state(); a.Works() || a.Exists {
		t.Errorf("without a table: %+v", a)
	}
	s.exec(events)
	if a := state(); a.Works() || !a.Exists || a.Trigger {
		t.Errorf("with another table: %+v", a)
	}
}

// Some layouts read a column if the table has it, without a word in --map.
func TestAMissingOptionalColumnIsReported(t *testing.T) {
	s := open(t, outboxevent)
	s.adopt(s.request(adopt.Debezium, "outboxevent", "", ""))
	s.exec("ALTER TABLE outboxevent DROP tracingspancontext")
	if all := s.list(); len(all) != 1 || fmt.Sprint(all[0].Missing) != "[tracingspancontext]" {
		t.Errorf("got %+v", all)
	}
	s.insert("INSERT INTO outboxevent (id, aggregatetype, aggregateid, type) VALUES ('" + first + "', 'Order', '42', 'T')")
	s.want(row{"headers": `cdc-relay adopt: record "r" has no field "tracingspancontext"`})
}

func TestAdoptedTablesSurviveADump(t *testing.T) {
	for _, program := range []string{"pg_dump", "psql"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(program + " is not there")
		}
	}
	s := open(t, events)
	s.adopt(s.request("", "events", eventMap, ""))
	dump, err := exec.CommandContext(t.Context(), "pg_dump", "--no-owner", "--no-privileges", s.url).Output()
	if err != nil {
		t.Skip("pg_dump is of another version")
	}
	other := *s
	other.url = services.Database(t)
	psql(t, other.url, string(dump))
	other.owner, other.app = connect(t, other.url), connect(t, other.url)
	if all := other.list(); len(all) != 1 || !all[0].Works() {
		t.Fatalf("got %+v", all)
	}
	other.insert("INSERT INTO events (topic, body) VALUES ('t', '1')")
	other.want(row{"routing_key": "t", "body": "1"})
}

func psql(t *testing.T, url, script string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url)
	cmd.Env = append(os.Environ(), "PGOPTIONS=-c client_min_messages=warning")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
}

func TestTheScriptForPsqlAdoptsTheTable(t *testing.T) {
	if _, err := exec.LookPath("psql"); err != nil {
		t.Skip("psql is not installed")
	}
	const name = `o'u"t$body$ `
	s := open(t, `CREATE SCHEMA "s'$body$"`, `CREATE TABLE "s'$body$"."e""v" ("i""d" serial PRIMARY KEY, "to'pic" text, "$body$" text)`)
	s.outbox = outbox.Table{Schema: "public", Name: name}
	if _, _, err := migrations.Up(t.Context(), s.owner, s.outbox); err != nil {
		t.Fatal(err)
	}
	s.exec(`INSERT INTO "s'$body$"."e""v" ("to'pic", "$body$") SELECT 't', i FROM generate_series(1, 2500) i`)
	r := adopt.Request{Outbox: s.outbox, From: outbox.Table{Schema: "s'$body$", Name: `e"v`}, Map: `routing_key="to'pic"||'$body$',payload="$body$",message_id="i""d"`, Waiting: "all"}
	script, err := adopt.SQL(t.Context(), s.owner, r)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		psql(t, s.url, script)
	}
	s.exec(`INSERT INTO "s'$body$"."e""v" ("to'pic", "$body$") VALUES ('t', 'x')`)
	if got := value[string](s, "SELECT count(*) || ' ' || max(routing_key) || ' ' || encode(max(payload_bytes::text)::bytea, 'escape') FROM "+s.outbox.SQL()); !strings.HasPrefix(got, "2501 t$body$ ") {
		t.Errorf("got %s", got)
	}
	a, err := adopt.Find(t.Context(), s.owner, s.outbox, nil)
	if err != nil || !a.Works() || a.Table != r.From {
		t.Fatalf("got %+v, %v", a, err)
	}
	psql(t, s.url, a.UndoSQL())
	if all := s.list(); len(all) != 0 {
		t.Errorf("got %+v", all)
	}
}

// A trigger or rule that prevents a DELETE would fail every INSERT of the application at COMMIT.
func TestATableThatForbidsDeletesNeedsAView(t *testing.T) {
	s := open(t, events, simplest, `CREATE TABLE ruled (id int PRIMARY KEY, topic text, body text)`,
		`CREATE TABLE days (id int PRIMARY KEY, topic text, body text) PARTITION BY LIST (id); CREATE TABLE day1 PARTITION OF days FOR VALUES IN (1)`)
	s.exec(`CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'append only'; END $$`)
	s.exec(`CREATE TRIGGER "No delete" BEFORE UPDATE OR DELETE ON events FOR EACH ROW EXECUTE FUNCTION forbid()`)
	s.exec(`CREATE TRIGGER forbid BEFORE DELETE ON outboxevent EXECUTE FUNCTION forbid()`)
	s.exec(`CREATE TRIGGER forbid BEFORE DELETE ON day1 FOR EACH ROW EXECUTE FUNCTION forbid()`)
	s.exec(`CREATE RULE ignore AS ON DELETE TO ruled DO INSTEAD NOTHING`)
	s.exec(`CREATE TABLE logged (id int PRIMARY KEY, topic text, body text)`)
	s.exec(`CREATE TRIGGER log AFTER DELETE ON logged FOR EACH ROW EXECUTE FUNCTION forbid()`)
	const mapping = "routing_key=topic,payload=body"
	for name, test := range map[string]struct {
		r    adopt.Request
		want string
	}{
		"a row trigger":            {s.request("", "events", mapping, ""), `table public.events has trigger "No delete", which can prevent a DELETE`},
		"a statement trigger":      {s.request(adopt.Debezium, "outboxevent", "", ""), "has trigger forbid,"},
		"a trigger of a partition": {s.request("", "days", mapping, ""), "has trigger forbid of public.day1,"},
		"a trigger afterwards":     {s.request("", "logged", mapping, ""), "has trigger log,"},
		"a rule":                   {s.request("", "ruled", mapping, ""), "has rule ignore,"},
	} {
		if _, err := adopt.Adopt(t.Context(), s.owner, test.r); err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(problem.Hint(err), "--view") {
			t.Errorf("%s: got %v (%s)", name, err, problem.Hint(err))
		}
	}
	r := s.request("", "events", mapping, "")
	r.View = true
	s.adopt(r)
	s.insert("INSERT INTO events (topic, body) VALUES ('t', '1')")
	s.exec("ALTER TABLE outboxevent DISABLE TRIGGER forbid")
	s.adopt(s.request(adopt.Debezium, "outboxevent", "", ""))
	s.insert("INSERT INTO outboxevent VALUES ('" + first + "', 'Order', '42', 'T', '2')")
	s.want(row{"body": "1"}, row{"body": "2"})
}

// Several may adopt a table at once, such as the jobs of a deployment.
func TestAConcurrentAdoptWaits(t *testing.T) {
	s := open(t, events)
	s.exec("INSERT INTO events (topic, body) SELECT 't', i FROM generate_series(1, 3000) i")
	conns := make([]*pgx.Conn, 8)
	for i := range conns {
		conns[i] = connect(t, s.url)
	}
	var group sync.WaitGroup
	for _, conn := range conns {
		group.Go(func() {
			if _, err := adopt.Adopt(t.Context(), conn, s.request("", "events", eventMap, "all")); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if n := value[int](s, "SELECT count(DISTINCT payload::text) + count(*) FROM outbox"); n != 6000 {
		t.Errorf("%d", n)
	}
	s.wantEmpty("events")
}

// A type of an extension may have its operators outside of pg_catalog.
func TestAPrimaryKeyMayHaveAnExtensionType(t *testing.T) {
	s := open(t)
	s.exec(`CREATE SCHEMA "Ext"; CREATE EXTENSION ltree SCHEMA "Ext"; CREATE DOMAIN place AS "Ext".ltree`)
	s.exec(`CREATE TABLE events (id int, path "Ext".ltree, at place, name name, body text, PRIMARY KEY (path, id, at, name))`)
	s.exec("GRANT INSERT ON events TO " + s.role)
	s.exec("INSERT INTO events VALUES (1, 'a.b', 'c', 'd', '1')")
	s.adopt(s.request("", "events", "routing_key=path,payload=body", "all"))
	s.insert("INSERT INTO events VALUES (2, 'a.b', 'c', 'd', '2'), (3, 'a.b', 'c', 'd', '3')")
	s.want(row{"routing_key": "a.b", "body": "1"}, row{"body": "2"}, row{"body": "3"})
	s.wantEmpty("events")
}

// The function would not see rows that row security hides from the outbox's owner, and leave them in the table.
func TestATableWithHiddenRowsIsRejected(t *testing.T) {
	s := open(t, events)
	s.exec("ALTER TABLE events ENABLE ROW LEVEL SECURITY")
	r := s.request("", "events", eventMap, "")
	s.adopt(r) // as a superuser
	s.undo("events")
	s.exec("ALTER TABLE outbox OWNER TO " + s.role)
	refused := func(as *pgx.Conn) {
		t.Helper()
		_, err := adopt.Adopt(t.Context(), as, r)
		if err == nil || !strings.Contains(err.Error(), "row security of table public.events hides rows from role") || problem.Hint(err) != `ALTER ROLE "`+s.role+`" BYPASSRLS;` {
			t.Errorf("got %v (%s)", err, problem.Hint(err))
		}
	}
	refused(s.owner)
	s.exec("GRANT CREATE ON SCHEMA public TO " + s.role + "; ALTER TABLE events FORCE ROW LEVEL SECURITY; ALTER TABLE events OWNER TO " + s.role)
	refused(s.owner)
	refused(s.app)
	s.exec("ALTER TABLE events NO FORCE ROW LEVEL SECURITY")
	if _, err := adopt.Adopt(t.Context(), connect(t, s.app.Config().ConnString()), r); err != nil {
		t.Fatal(err)
	}
	s.insert("INSERT INTO events (topic, body) VALUES ('t', '1')")
	s.want(row{"body": "1"})
	s.wantEmpty("events")
}

// It runs with the rights of the outbox's owner, which nobody may use otherwise.
func TestTheFunctionCannotBeUsedToGainRights(t *testing.T) {
	s := open(t, events)
	s.adopt(s.request("", "events", eventMap, ""))
	s.exec("GRANT CREATE ON SCHEMA public TO " + s.role)
	s.insert("CREATE TABLE mine (LIKE events)")
	if _, err := s.app.Exec(t.Context(), "CREATE TRIGGER t AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION outbox_from_events()"); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("got %v", err)
	}
	s.exec("CREATE SCHEMA evil AUTHORIZATION " + s.role)
	s.insert("SET search_path = evil, pg_temp, public", "CREATE FUNCTION evil.md5(text) RETURNS text LANGUAGE sql AS 'SELECT NULL::text'",
		"CREATE TABLE evil.outbox (id bigint)", "INSERT INTO public.events (topic, customer, body) VALUES ('t', repeat('x', 3000), '1')")
	s.want(row{"ordering_key": value[string](s, "SELECT md5(repeat('x', 3000))")})
}

func TestObstaclesAreReportedBeforeAnyChange(t *testing.T) {
	s := open(t, events, simplest, "CREATE TABLE nokey (a text)", "CREATE TABLE years (id int PRIMARY KEY, body text); CREATE TABLE year1 () INHERITS (years)", "CREATE TABLE parent (id int PRIMARY KEY, body text)", "CREATE TABLE child (p int REFERENCES parent)",
		"CREATE VIEW v AS SELECT 1 AS a")
	s.exec("CREATE TABLE foreign_owner (id int PRIMARY KEY, body text); ALTER TABLE outbox OWNER TO " + s.role)
	const body = "routing_key='k',payload=body"
	for name, test := range map[string]struct {
		r    adopt.Request
		want string
	}{
		"no table":    {s.request(adopt.Debezium, "nowhere", "", ""), "table public.nowhere does not exist"},
		"no key":      {s.request("", "nokey", "routing_key=a,payload=a", ""), "has no primary key"},
		"a reference": {s.request("", "parent", body, ""), "is the target of foreign key child_p_fkey of public.child"},
		"children":    {s.request("", "years", body, ""), "table public.years has child tables public.year1, and their rows would stay there"},
		"a view":      {s.request("", "v", body, ""), "is a view"},
		"itself":      {s.request("", "outbox", body, ""), "is the outbox itself"},
		"no right":    {s.request("", "foreign_owner", body, ""), "may not read and delete rows of public.foreign_owner"},
		"a bad map":   {s.request("", "events", "payload", ""), "--map: "},
		"no outbox":   {adopt.Request{Outbox: outbox.Table{Schema: "public", Name: "no"}, From: outbox.Table{Schema: "public", Name: "events"}}, "the outbox public.no does not exist"},
	} {
		if _, err := adopt.Adopt(t.Context(), s.owner, test.r); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	s.exec("ALTER TABLE outbox OWNER TO CURRENT_USER")
	for name, test := range map[string]struct {
		r    adopt.Request
		want string
	}{
		"a missing column":  {s.request(adopt.Debezium, "events", "", ""), "table public.events has no column aggregatetype, for routing_key"},
		"no payload":        {s.request("", "events", "routing_key=topic", ""), "nothing says what becomes the payload"},
		"a time of text":    {s.request("", "events", "routing_key=topic,payload=body,created_at=topic", ""), "created_at needs one column with date and time, and not topic text"},
		"another's columns": {s.request(adopt.CeleryOutbox, "events", "", ""), "it is not that of django-celery-outbox"},
		"a map for celery":  {s.request(adopt.CeleryOutbox, "events", "payload=body", ""), "has no column"},
	} {
		if _, err := adopt.Adopt(t.Context(), s.owner, test.r); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if n := value[int](s, "SELECT count(*) FROM pg_proc WHERE proname ~ '^outbox_from'"); n != 0 {
		t.Errorf("%d functions were made", n)
	}
}
