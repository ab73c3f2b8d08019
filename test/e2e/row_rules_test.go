package e2e

import (
	"reflect"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Relays take rows at the very time at which an application cancels them: a row is either cancelled or published. Some
// rows wait for a retry, some have a key, and two relays take them.
func TestACancelledMessageIsNotPublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	w.succeeds("setup", "--functions")
	arrived := w.consume(w.queue)
	for range 2 {
		w.run("--poll-interval", "10ms")
	}
	w.exec(`INSERT INTO outbox (routing_key, payload, ordering_key, attempts, available_at)
		SELECT $1, '1', CASE n % 3 WHEN 0 THEN (n % 20)::text END, n % 2, clock_timestamp() + n * interval '1 ms'
		FROM generate_series(1, 600) n`, w.queue)
	w.exec(`INSERT INTO outbox (routing_key, payload, available_at) VALUES ($1, '1', 'infinity')`, w.queue)
	cancelled := make(map[string]bool)
	for _, id := range query[string](w, `SELECT message_id::text FROM outbox ORDER BY random()`) {
		cancelled[id] = value[bool](w, `SELECT outbox_cancel($1)`, id)
	}
	w.emptied()
	for id, yes := range cancelled {
		if !yes {
			w.eventually("a message that was not cancelled arrives", func() bool { return arrived.count(id) > 0 })
		} else if arrived.count(id) > 0 {
			t.Errorf("%s is cancelled and published", id)
		}
	}
	w.noDeadLetters()
}

// Streamed and swept rows have them. Other columns may change while the relay runs. A missing one ends the relay with
// an error that names it.
func TestColumnsOfTheApplicationBecomeHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	w.fails([]string{"run", "--header-columns", "tenant"}, "has no column tenant, which --header-columns lists")
	w.exec(`ALTER TABLE outbox ADD tenant text, ADD "Shop" integer, ADD big bigint, ADD small smallint, ADD yes boolean, ADD ref uuid,
		ADD code varchar(9), ADD amount numeric, ADD twice integer GENERATED ALWAYS AS (1) STORED`)
	for column, says := range map[string]string{"amount": "is numeric, which --header-columns cannot send", "twice": "is generated"} {
		w.fails([]string{"run", "--header-columns", column}, "column "+column+" of table public.outbox "+says)
	}
	insert := func(state string) {
		w.exec(`INSERT INTO outbox (routing_key, payload, ordering_key, coalesce_key, headers, tenant, "Shop", big, small, yes, ref, code)
			VALUES ($1, '1', 'key', $2, '{"code": "own"}', 'acme ü', 42, 9007199254740993, -1, true, '00000000-0000-0000-0000-00000000000a', 'x'),
			       ($1, '2', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)`, w.queue, state)
	}
	insert("a")
	r := w.run("--header-columns", "tenant,Shop,big,small,yes,ref,code,coalesce_key", "--ordering-key-header", "x-key")
	w.eventually("the first have left", w.outboxEmpty)
	insert("b")
	w.exec(`ALTER TABLE outbox ADD later text, DROP amount`)
	insert("c")
	w.eventually("the others have left", w.outboxEmpty)
	channel, states := w.channel(), "abc"
	for range 6 {
		d, ok, err := channel.Get(w.queue, true)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		delete(d.Headers, "x-possible-duplicate")
		want := amqp.Table(nil)
		if string(d.Body) == "1" {
			want = amqp.Table{
				"coalesce_key": states[:1], "tenant": "acme ü", "Shop": int64(42), "big": int64(9007199254740993), "small": int64(-1), "yes": true,
				"ref": "00000000-0000-0000-0000-00000000000a", "code": "own", "x-key": "key",
			}
			states = states[1:]
		}
		if len(d.Headers) != len(want) || (want != nil && !reflect.DeepEqual(d.Headers, want)) {
			t.Errorf("message %s has %v", d.Body, d.Headers)
		}
	}
	w.exec(`ALTER TABLE outbox DROP tenant`)
	w.exec(`INSERT INTO outbox (routing_key, payload) VALUES ($1, '1')`, w.queue)
	w.eventually("the relay has ended", r.exited)
	if r.exit() != 1 || !strings.Contains(r.logs(), "tenant") {
		t.Errorf("exit %d", r.exit())
	}
}
