package e2e

import (
	"bytes"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// content is a row that SQL accepts, and its result: it arrives with body and headers, or becomes a dead letter at
// once, with an error that names the column and says what to do.
type content struct {
	name    string
	row     row
	body    []byte     // as it arrives
	headers amqp.Table // as they arrive; nil: not checked
	reason  string     // of the dead letter; "": it arrives
	says    string     // in its last_error
}

// contents are some of each kind; publish/wire has all headers, and all mistakes.
func contents() []content {
	const twenty = 20 << 20
	largeJSON := []byte(`{"pad" :  "` + strings.Repeat("x", twenty) + `"}`)
	largeBytes := bytes.Repeat([]byte{0, 1, 2, 254, 255}, twenty/5)
	return []content{
		{
			name: "payload keeps its spelling", row: row{"payload": " {\"b\":1,\n \"a\" : 1.50, \"b\":1e3,\"ü\":\"\\u00fc\"} "},
			body: []byte(" {\"b\":1,\n \"a\" : 1.50, \"b\":1e3,\"ü\":\"\\u00fc\"} "),
		},
		{name: "payload is JSON null", row: row{"payload": "null"}, body: []byte("null")},
		{name: "payload is a number", row: row{"payload": "123456789012345678901234567890.10"}, body: []byte("123456789012345678901234567890.10")},
		{name: "empty binary payload", row: row{"payload_bytes": []byte{}}, body: nil},
		{name: "binary payload with every byte", row: row{"payload_bytes": everyByte()}, body: everyByte()},
		{
			name: "header of each type", row: row{"headers": `{"s": "ü", "i": 1, "f": 1.5, "t": true, "z": null}`},
			body: []byte("{}"), headers: amqp.Table{"s": "ü", "i": int64(1), "f": 1.5, "t": true, "z": nil},
		},
		{
			name: "nested headers", row: row{"headers": `{"o": {"p": {"n": 5000000000}}, "l": [1, "two", {"three": [3]}, []]}`},
			body: []byte("{}"), headers: amqp.Table{
				"o": amqp.Table{"p": amqp.Table{"n": int64(5_000_000_000)}},
				"l": []any{int64(1), "two", amqp.Table{"three": []any{int64(3)}}, []any(nil)},
			},
		},
		{name: "header that only the relay may set", row: row{"headers": `{"x-possible-duplicate": true, "a": 1}`}, body: []byte("{}")},
		{
			name: "header beyond 64 bits", row: row{"headers": `{"deep": {"list": [1, 9223372036854775808]}}`},
			reason: "invalid_headers", says: "headers.deep.list[1]",
		},
		{
			name: "no payload at all", row: row{"payload": nil, "attempts": 3}, reason: "invalid_row",
			says: "payload and payload_bytes are both null: set one of them",
		},
		{
			name: "routing key of 20 MB", row: row{"routing_key": strings.Repeat("k", twenty)}, reason: "invalid_routing",
			says: "routing_key is too large: more than 1048576 bytes",
		},
		{
			name: "unknown property", row: row{"properties": `{"contenttype": "x"}`}, reason: "invalid_properties",
			says: `"contenttype" is not known; known are content_type`,
		},
		// The limit of RabbitMQ 4, and one byte more.
		{name: "16 MiB", row: row{"payload_bytes": largeBytes[:16<<20]}, body: largeBytes[:16<<20]},
		{name: "16 MiB and a byte", row: row{"payload_bytes": largeBytes[:16<<20+1]}, body: largeBytes[:16<<20+1]},
		{name: "20 MB of JSON", row: row{"payload": string(largeJSON)}, body: largeJSON},
		{name: "20 MB of bytes", row: row{"payload_bytes": largeBytes}, body: largeBytes},
	}
}

func everyByte() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// largestMessage returns the broker's limit: 128 MiB, and 16 MiB from RabbitMQ 4 on.
func largestMessage(t *testing.T) int {
	t.Helper()
	major, _, _ := strings.Cut(services.SharedRabbitMQ(t).Version, ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		t.Fatalf("the broker has the version %q", services.SharedRabbitMQ(t).Version)
	}
	if n >= 4 {
		return 16 << 20
	}
	return 128 << 20
}

// Covers rows that are in the table at the start and streamed rows, each with a neighbour.
func TestEveryRowArrivesUnchangedOrIsDeadLettered(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	cases := contents()
	most := largestMessage(t)
	for i, c := range cases {
		if c.reason == "" && len(c.body) > most {
			cases[i].reason, cases[i].says = "too_large", strconv.Itoa(most)
		}
	}
	insertAll := func() (ids []string) {
		for i, c := range cases {
			ids = append(ids, w.insert(c.row), w.insert(row{"payload": fmt.Sprint(i)}))
		}
		return ids
	}
	found := insertAll()
	arrived := w.consume(w.queue)
	r := w.run()
	w.emptied()
	streamed := insertAll()
	w.emptied()
	w.wantResults(arrived, cases, map[string][]string{"found in the table": found, "streamed": streamed})
	noDuplicates(t, arrived)
	// A message that makes the broker close a channel counts as rejected.
	if n := r.metric(`cdc_relay_messages_refused_total{reason="broker_rejected"}`); n != 0 {
		t.Errorf("the broker closed the channel %g times", n)
	}
	if strings.Contains(r.logs(), strings.Repeat("k", 1000)) {
		t.Error("a routing key is logged in full")
	}
	if mb := r.residentMB(); mb > 400 && !raceDetector {
		t.Errorf("the relay took %d MB", mb)
	}
}

// wantResults checks rows and their neighbours, whose ids alternate, of each way into the table.
func (w *world) wantResults(arrived *ledger, cases []content, ways map[string][]string) {
	w.t.Helper()
	for way, ids := range ways {
		for i, c := range cases {
			w.t.Run(way+"/"+c.name, func(t *testing.T) {
				on := *w
				on.t = t
				on.wantResult(arrived, c, ids[2*i])
				if neighbour := on.await(arrived, ids[2*i+1]); string(neighbour.Body) != fmt.Sprint(i) {
					t.Errorf("its neighbour arrived as %q", neighbour.Body)
				}
			})
		}
	}
}

func (w *world) wantResult(arrived *ledger, c content, id string) {
	w.t.Helper()
	if c.reason != "" {
		dead := w.awaitDeadLetter(id)
		attempts, _ := c.row["attempts"].(int) // only those that were inserted
		if dead.Attempts != attempts || dead.FailureReason != c.reason || !strings.Contains(dead.LastError, c.says) {
			w.t.Errorf("dead letter: %d attempts, reason %q and error %.300q, want %d, %q and %q",
				dead.Attempts, dead.FailureReason, dead.LastError, attempts, c.reason, c.says)
		}
		if arrived.count(id) != 0 {
			w.t.Error("the dead letter was published as well")
		}
		return
	}
	d := w.await(arrived, id)
	if !bytes.Equal(d.Body, c.body) {
		w.t.Errorf("the body is %.100q (%d bytes), want %.100q (%d bytes)", d.Body, len(d.Body), c.body, len(c.body))
	}
	delete(d.Headers, "x-possible-duplicate")
	if c.headers != nil && !reflect.DeepEqual(d.Headers, c.headers) {
		w.t.Errorf("headers %v, want %v", d.Headers, c.headers)
	}
}

// Committed rows are published. Covers every way to insert.
func TestRowsOfARollbackAreNeverPublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	w.exec(`CREATE UNIQUE INDEX ON outbox (message_id)`)
	arrived := w.consume(w.queue)
	w.run()
	script := func(sql string) {
		t.Helper()
		if _, err := w.db.Exec(t.Context(), strings.ReplaceAll(sql, "QUEUE", w.queue)); err != nil {
			t.Fatalf("%s: %v", firstLine(sql), err)
		}
	}
	script(`BEGIN; INSERT INTO outbox (routing_key, payload) VALUES ('QUEUE', '"rolled back"'); ROLLBACK`)
	script(`BEGIN; INSERT INTO outbox (routing_key, payload) VALUES ('QUEUE', '"before the savepoint"');
		SAVEPOINT s; INSERT INTO outbox (routing_key, payload) VALUES ('QUEUE', '"rolled back to the savepoint"'); ROLLBACK TO s;
		SAVEPOINT r; INSERT INTO outbox (routing_key, payload) VALUES ('QUEUE', '"in a released savepoint"'); RELEASE r; COMMIT`)
	script(`DO $$ BEGIN
		BEGIN INSERT INTO outbox (routing_key, payload) VALUES ('QUEUE', '"rolled back by an exception"'); RAISE 'no';
		EXCEPTION WHEN OTHERS THEN INSERT INTO outbox (routing_key, payload) VALUES ('QUEUE', '"from the handler"'); END;
	END $$`)
	script(`INSERT INTO outbox (routing_key, payload) VALUES ('QUEUE', '"first of two"'), ('QUEUE', '"second of two"')`)
	if err := w.tryExec(`INSERT INTO outbox (routing_key, payload)
		SELECT CASE WHEN n < 9 THEN $1 END, '"failed at its last row"' FROM generate_series(1, 9) n`, w.queue); err == nil {
		t.Fatal("a NULL was accepted as routing key")
	}
	script(`WITH o AS (INSERT INTO outbox (routing_key, payload) VALUES ('QUEUE', '"from a CTE"') RETURNING id) SELECT * FROM o`)
	script(`BEGIN; INSERT INTO outbox (routing_key, payload) VALUES ('QUEUE', '"inserted and deleted"'); DELETE FROM outbox; COMMIT`)
	script(`BEGIN; INSERT INTO outbox (message_id, routing_key, payload) VALUES ('00000000-0000-0000-0000-000000000001', 'QUEUE', '"not overwritten"');
		INSERT INTO outbox (message_id, routing_key, payload) VALUES ('00000000-0000-0000-0000-000000000001', 'QUEUE', '"conflict, nothing done"') ON CONFLICT DO NOTHING;
		INSERT INTO outbox (message_id, routing_key, payload) VALUES ('00000000-0000-0000-0000-000000000002', 'QUEUE', '"no conflict"') ON CONFLICT (message_id) DO NOTHING;
		COMMIT`)
	script(`INSERT INTO outbox (message_id, routing_key, payload) VALUES ('00000000-0000-0000-0000-000000000003', 'QUEUE', '"no conflict to update"')
		ON CONFLICT (message_id) DO UPDATE SET payload = '"updated"'`)
	w.copyRows(2, w.queue)
	script(`INSERT INTO outbox (routing_key, payload) VALUES ('QUEUE', '"last"')`)
	w.eventually("the last arrives", func() bool { return bodies(arrived)[`"last"`] == 1 })
	w.emptied()
	want := map[string]int{
		`"before the savepoint"`: 1, `"in a released savepoint"`: 1, `"from the handler"`: 1, `"first of two"`: 1,
		`"second of two"`: 1, `"from a CTE"`: 1, `"not overwritten"`: 1, `"no conflict"`: 1, `"no conflict to update"`: 1,
		`{"copied": 0}`: 1, `{"copied": 1}`: 1, `"last"`: 1,
	}
	got := bodies(arrived)
	delete(got, `"inserted and deleted"`) // committed, but deleted before a query could see it: either result is right
	if !reflect.DeepEqual(got, want) {
		t.Errorf("arrived: %v\nwant: %v", got, want)
	}
}

func bodies(l *ledger) map[string]int {
	counts := make(map[string]int)
	for _, d := range l.all() {
		counts[string(d.Body)]++
	}
	return counts
}

// A database with the encoding SQL_ASCII takes any bytes. Such rows stop neither the stream nor a sweep.
func TestRowsThatAreNotUTF8DelayNoOther(t *testing.T) {
	services.Thorough(t, "one of many environments")
	t.Parallel()
	w := newWorldOn(t, services.Database(t, "TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"), services.VHost(t)).setUp()
	insert := func(payload, headers string) string {
		return value[string](w, `INSERT INTO outbox (routing_key, ordering_key, payload, headers)
			VALUES ($1, E'\xe4', E'"`+payload+`"'::json, E'{"x": "`+headers+`"}'::jsonb) RETURNING message_id::text`, w.queue)
	}
	arrived := w.consume(w.queue)
	check := func(plain, body, header, last string) {
		t.Helper()
		w.await(arrived, plain)
		if d := w.await(arrived, body); string(d.Body) != "\"\xe4\"" {
			t.Errorf("the body is %q", d.Body)
		}
		w.eventually("the row with other headers is a dead letter", func() bool {
			return value[int](w, "SELECT count(*) FROM outbox_dead_letter WHERE message_id = $1 AND last_error LIKE '%headers: must be UTF-8%'", header) == 1
		})
		w.await(arrived, last)
	}
	rows := func() []string {
		return []string{insert("a", "b"), insert(`\xe4`, "b"), insert("a", `\xe4`), insert("a", "ä")}
	}
	waiting := rows()
	w.run()
	check(waiting[0], waiting[1], waiting[2], waiting[3])
	streamed := rows()
	check(streamed[0], streamed[1], streamed[2], streamed[3])
	w.emptied()
}

// In transaction mode, settings of the relay would stay in sessions of applications.
func TestARelayBehindAPooler(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	direct := w.database
	w.database = services.PgBouncer(t, direct, "pool_mode = transaction")
	for _, args := range [][]string{{"run", "--mode", "poll"}, {"drain"}, {"setup", "--mode", "poll"}, {"list"}} {
		w.fails(args, "shares server processes", "pool_mode = session")
	}
	w.database = services.PgBouncer(t, direct, "pool_mode = session")
	w.run("--mode", "poll", "--poll-interval", "50ms")
	w.await(arrived, w.insert(nil))
}
