package e2e

import (
	"reflect"
	"strings"
	"testing"
	"time"

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

// The error names the column, wherever it is noticed first: in the stream, in a sweep, or in an update of a row.
func TestAMissingColumnStopsTheRelay(t *testing.T) {
	t.Parallel()
	unroutable := row{"exchange": "nowhere"}
	for _, c := range []struct {
		name   string
		args   []string
		change string
		row    string // what makes the relay notice
		column string
	}{
		{"renamed, streaming", nil, `ALTER TABLE outbox RENAME COLUMN headers TO heads`, "plain", "headers"},
		{"dropped, streaming", nil, `ALTER TABLE outbox DROP COLUMN ordering_key`, "plain", "ordering_key"},
		{"renamed, polling", []string{"--mode", "poll"}, `ALTER TABLE outbox RENAME COLUMN headers TO heads`, "plain", "headers"},
		{"dropped, needed for a rejection", nil, `ALTER TABLE outbox DROP COLUMN last_error`, "rejected", "last_error"},
		{
			"dropped from the dead letters",
			[]string{"--max-retries", "0"},
			`ALTER TABLE outbox_dead_letter DROP COLUMN failure_reason`, "rejected", "failure_reason",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, arrived := consuming(t)
			r := w.run(append([]string{"--poll-interval", "100ms", "--backoff-time", "50ms"}, c.args...)...)
			w.await(arrived, w.insert(nil))
			w.emptied()
			w.exec(c.change)
			if c.row == "rejected" {
				w.insert(unroutable)
			} else {
				w.insert(nil)
			}
			if code := r.exit(); code != 1 {
				t.Errorf("exit code %d", code)
			}
			lines := strings.Split(strings.TrimSpace(r.logs()), "\n")
			last := lines[max(0, len(lines)-2):]
			if !strings.Contains(strings.Join(last, "\n"), c.column) {
				t.Errorf("the last line is %q, which does not name the column %s", last, c.column)
			}
			if n := value[int](w, `SELECT count(*) FROM outbox`); n != 1 {
				t.Errorf("%d rows in the table, want the one that waits", n)
			}
		})
	}
}

// Rows inserted after TRUNCATE … RESTART IDENTITY are distinguished from earlier rows with the same ids.
func TestReusedIDsAfterTruncateArePublished(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	r := w.run("--backoff-time", "1h")
	total := 0
	for range 5 {
		w.exec(`INSERT INTO outbox (routing_key, payload) SELECT $1, '{}' FROM generate_series(1, 200)`, w.queue)
		total += 200
		w.eventually("they arrive", func() bool { return arrived.distinct() == total })
		w.exec(`TRUNCATE outbox RESTART IDENTITY`) // some rows may still be there, delivered and not yet deleted
	}
	w.insert(row{"exchange": "nowhere"}) // waits for its retry
	w.eventually("the row waits for its retry", func() bool { return value[int](w, `SELECT coalesce(max(attempts), 0) FROM outbox`) == 1 })
	w.exec(`TRUNCATE outbox`)
	w.await(arrived, w.insert(row{"ordering_key": "k"}))
	w.emptied()
	w.eventually("nothing is in flight any more", func() bool { return r.metric("cdc_relay_messages_in_flight") == 0 })
	noDuplicates(t, arrived)
	w.noDeadLetters()
}

// It has exactly the documented fields.
func TestTheSmallestMessageArrivesAsDocumented(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	w.run()
	id := w.insert(row{"payload": `{"order_id": 42}`, "created_at": time.Date(2024, 2, 29, 23, 59, 58, 999_000_000, time.UTC)})
	d := w.await(arrived, id)
	if string(d.Body) != `{"order_id": 42}` {
		t.Errorf("body %q", d.Body)
	}
	if want := time.Date(2024, 2, 29, 23, 59, 58, 0, time.UTC); !d.Timestamp.Equal(want) {
		t.Errorf("timestamp %s, want created_at %s", d.Timestamp, want)
	}
	if d.DeliveryMode != amqp.Persistent || d.ContentType != "application/json" {
		t.Errorf("delivery mode %d, content type %q", d.DeliveryMode, d.ContentType)
	}
	if d.Exchange != "" || d.RoutingKey != w.queue || d.Redelivered {
		t.Errorf("from exchange %q with routing key %q, redelivered %t", d.Exchange, d.RoutingKey, d.Redelivered)
	}
	if len(d.Headers) != 0 {
		t.Errorf("headers %v on a row that has none, and was not published before", d.Headers)
	}
	if d.ContentEncoding+d.CorrelationId+d.ReplyTo+d.Expiration+d.Type+d.UserId+d.AppId != "" || d.Priority != 0 {
		t.Errorf("properties that nobody set: %+v", d)
	}
	binary := w.await(arrived, w.insert(row{"payload_bytes": []byte{0, 255}}))
	if binary.ContentType != "application/octet-stream" || string(binary.Body) != "\x00\xff" {
		t.Errorf("binary: content type %q, body %q", binary.ContentType, binary.Body)
	}
}

// Each has the value from the row.
func TestEveryPropertyArrives(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	w.run()
	login := mustURL(t, w.broker).User.Username()
	d := w.await(arrived, w.insert(row{
		"properties": `{"content_type": "application/cloudevents+json", "content_encoding": "identity", "correlation_id": "c-1",
			"reply_to": "replies", "expiration": "60000", "priority": 9, "type": "order.created", "user_id": "` + login + `",
			"app_id": "shop", "delivery_mode": 1}`,
		"headers": `{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "baggage": "a=b,c=d"}`,
	}))
	got := map[string]any{
		"content_type": d.ContentType, "content_encoding": d.ContentEncoding, "correlation_id": d.CorrelationId,
		"reply_to": d.ReplyTo, "expiration": d.Expiration, "priority": d.Priority, "type": d.Type, "user_id": d.UserId,
		"app_id": d.AppId, "delivery_mode": d.DeliveryMode, "headers": d.Headers,
	}
	want := map[string]any{
		"content_type": "application/cloudevents+json", "content_encoding": "identity", "correlation_id": "c-1",
		"reply_to": "replies", "expiration": "60000", "priority": uint8(9), "type": "order.created", "user_id": login,
		"app_id": "shop", "delivery_mode": uint8(1), "headers": amqp.Table{
			"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "baggage": "a=b,c=d",
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	number := w.await(arrived, w.insert(row{"properties": `{"expiration": 60000, "content_type": "text/plain"}`, "payload_bytes": []byte("x")}))
	if number.Expiration != "60000" || number.ContentType != "text/plain" {
		t.Errorf("expiration %q, content type %q", number.Expiration, number.ContentType)
	}
}

// This is the row's own exchange, or else the relay's --exchange.
func TestMessagesGoToTheirExchange(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	const weird = `a.*.#/"ä€𝄞" '\ %`
	for _, exchange := range []string{w.queue + "default", w.queue + "own ü"} {
		w.bindExchange(exchange, "topic", w.queue, "#")
	}
	arrived := w.consume(w.queue)
	w.run("--exchange", w.queue+"default")
	for _, c := range []struct {
		row      row
		exchange string
		key      string
	}{
		{row{"routing_key": "a.b"}, w.queue + "default", "a.b"},
		{row{"routing_key": "a.b", "exchange": w.queue + "own ü"}, w.queue + "own ü", "a.b"},
		{row{"routing_key": w.queue, "exchange": ""}, "", w.queue},
		{row{"routing_key": ""}, w.queue + "default", ""},
		{row{"routing_key": weird}, w.queue + "default", weird},
		{row{"routing_key": "tab\tnewline\nreturn\r"}, w.queue + "default", "tab\tnewline\nreturn\r"},
		{row{"routing_key": strings.Repeat("€", 85)}, w.queue + "default", strings.Repeat("€", 85)},
	} {
		if d := w.await(arrived, w.insert(c.row)); d.Exchange != c.exchange || d.RoutingKey != c.key {
			t.Errorf("%v arrived from exchange %q with routing key %q", c.row, d.Exchange, d.RoutingKey)
		}
	}
}
