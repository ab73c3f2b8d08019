package e2e

import (
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Waiting and new rows of each layout's table reach the queue.
func TestAdoptedTablesArePublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	exchange := w.queue + "_events"
	w.bindExchange(exchange, "topic", w.queue, "#")
	arrived := w.consume(w.queue)
	w.run("--exchange", exchange)
	number := 0 // of the layout, in the ids
	for layout, test := range map[string]struct {
		table, insert string // with the last digits of the id, and the body
		adopt         []string
		wanted        func(id, body string) amqp.Publishing
		routingKey    string
	}{
		"debezium": {
			`CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255), aggregateid varchar(255), type varchar(255), timestamp timestamptz, payload jsonb)`,
			`INSERT INTO outboxevent VALUES ('%s', 'Order', '42', 'OrderCreated', '2026-01-02 03:04:05Z', '%s')`,
			[]string{"adopt", "debezium", "--waiting", "all"},
			func(_, body string) amqp.Publishing {
				return amqp.Publishing{Body: []byte(body), Type: "OrderCreated", Headers: amqp.Table{"aggregateid": "42"}}
			},
			"outbox.event.Order",
		},
		"celery-outbox": {
			`CREATE TABLE celery_outbox (id bigserial PRIMARY KEY, created_at timestamptz, task_id text, task_name text, args jsonb, kwargs jsonb, options jsonb)`,
			`INSERT INTO celery_outbox (created_at, task_id, task_name, args, kwargs, options) VALUES (now(), '%s', 'shop.add', '[%s]', '{}', '{"queue": "` + w.queue + `"}')`,
			[]string{"adopt", "celery-outbox"},
			func(id, body string) amqp.Publishing {
				return amqp.Publishing{
					Body: []byte(`[[` + body + `], {}, {"callbacks" : null, "errbacks" : null, "chain" : null, "chord" : null}]`), CorrelationId: id,
					Headers: amqp.Table{"task": "shop.add", "id": id},
				}
			},
			w.queue,
		},
		"watermill": {
			`CREATE TABLE watermill_orders ("offset" BIGSERIAL, uuid VARCHAR(36) NOT NULL, created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, payload JSON, metadata JSON,
				transaction_id xid8 NOT NULL, PRIMARY KEY (transaction_id, "offset"))`,
			`INSERT INTO watermill_orders (uuid, payload, metadata, transaction_id) VALUES ('%s', '%s', '{"k": "v"}', pg_current_xact_id())`,
			[]string{"adopt", "watermill", "--waiting", "all"},
			func(id, body string) amqp.Publishing {
				return amqp.Publishing{Body: []byte(body), Headers: amqp.Table{"k": "v", "_watermill_message_uuid": id}}
			},
			"orders",
		},
		"cap": {
			`CREATE SCHEMA cap; CREATE TABLE cap.published ("Id" bigint PRIMARY KEY, "Version" varchar(20), "Name" varchar(200), "Content" text, "Retries" int, "Added" timestamp, "ExpiresAt" timestamp,
				"StatusName" varchar(50))`,
			`INSERT INTO cap.published SELECT right(id, 12)::bigint, 'v1', id, format('{"Headers":{"id":"%%s","cap-callback-name":null},"Value":%%s}', id, body), 0, now(), NULL, 'Scheduled'
				FROM (VALUES ('%s', '%s')) v(id, body)`,
			[]string{"adopt", "cap", "--set", "exchange='" + exchange + "'", "--set", `message_id="Name"`, "--set", "routing_key='orders.created'"},
			func(id, body string) amqp.Publishing {
				return amqp.Publishing{Body: []byte(body), Headers: amqp.Table{"id": id, "cap-callback-name": nil}}
			},
			"orders.created",
		},
		"namastack": {
			`CREATE TABLE outbox_record (id varchar(255) PRIMARY KEY, status varchar(20), record_key varchar(255), record_type varchar(255), payload text, context text, created_at timestamptz, completed_at timestamptz,
				failure_count int, failure_reason varchar(1000), next_retry_at timestamptz, partition_no int, handler_id varchar(1000))`,
			`INSERT INTO outbox_record VALUES ('%s', 'NEW', 'order-7', 'shop.OrderCreated', '%s', NULL, now(), NULL, 0, NULL, now(), 3, 'io.namastack.outbox.rabbit.RabbitOutboxHandler#handle(java.lang.Object)')`,
			[]string{"adopt", "namastack", "--set", "exchange='" + exchange + "'"},
			func(_, body string) amqp.Publishing {
				return amqp.Publishing{Body: []byte(body), Headers: amqp.Table{"__TypeId__": "shop.OrderCreated"}}
			},
			"order-7",
		},
		"any table": {
			`CREATE TABLE events (key uuid PRIMARY KEY, topic text DEFAULT 'billing', body text)`,
			`INSERT INTO events (key, body) VALUES ('%s', '%s')`,
			[]string{"adopt", "--from", "events", "--set", "routing_key=topic", "--set", "message_id=key", "--set", "payload=body", "--set", "ordering_key=topic", "--view", "--waiting", "all"},
			func(_, body string) amqp.Publishing { return amqp.Publishing{Body: []byte(body)} },
			"billing",
		},
	} {
		number++
		id := func(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%06d%06d", number, n) }
		w.exec(test.table)
		w.exec(fmt.Sprintf(test.insert, id(1), `{"n": 1}`))
		w.succeeds(test.adopt...)
		w.exec(fmt.Sprintf(test.insert, id(2), `{"n": 2}`))
		for n := 1; n <= 2; n++ {
			d, wanted := w.await(arrived, id(n)), test.wanted(id(n), fmt.Sprintf(`{"n": %d}`, n))
			if string(d.Body) != string(wanted.Body) || d.Type != wanted.Type || d.CorrelationId != wanted.CorrelationId || d.RoutingKey != test.routingKey {
				t.Errorf("%s: got routing key %s, type %s, correlation id %s, body %s", layout, d.RoutingKey, d.Type, d.CorrelationId, d.Body)
			}
			for key, v := range wanted.Headers {
				if d.Headers[key] != v {
					t.Errorf("%s: header %s is %v, want %v", layout, key, d.Headers[key], v)
				}
			}
		}
	}
	w.eventually("the outbox is empty", w.outboxEmpty)
	noDuplicates(t, arrived)
	// A row that cannot be converted does not fail the INSERT, and becomes a dead letter with the reason.
	w.exec(`INSERT INTO celery_outbox (created_at, task_id, task_name, args, kwargs, options) VALUES (now(), 'x', 'shop.add', '[]', '{}', '{"eta": "soon"}')`)
	w.eventually("the message is a dead letter", func() bool {
		return value[int](w, `SELECT count(*) FROM outbox_dead_letter WHERE failure_reason = 'invalid_headers' AND headers #>> '{}' LIKE '%soon%' AND payload ->> 'task_id' = 'x'`) == 1
	})
	w.succeeds("adopt", "--undo", "--from", "events")
	w.exec(`INSERT INTO events (key, body) VALUES (gen_random_uuid(), '{}')`)
	if n := value[int](w, `SELECT count(*) FROM events`); n != 1 {
		t.Errorf("%d rows in the table, want 1", n)
	}
}
