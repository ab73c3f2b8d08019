package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// Covers streamed and swept rows.
func TestMessagesOfALATIN1DatabaseAreSentAsUTF8(t *testing.T) {
	services.Thorough(t, "one of many environments")
	t.Parallel()
	w := newWorldOn(t, services.Database(t, "TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"), services.VHost(t)).setUp()
	key := w.queue + "-äöüß"
	w.declareQueue(key, nil)
	insert := func() string {
		return w.insert(row{
			"routing_key": key, "ordering_key": "Ö", "payload": `{"größe": "ÄÖÜ é"}`,
			"headers": `{"straße": "Ö", "list": ["ñ"]}`, "properties": `{"type": "überfällig"}`, "redacted_payload": `"ä"`,
		})
	}
	found := insert()
	arrived := w.consume(key)
	w.run("--max-retries", "0")
	for _, id := range []string{found, insert()} {
		d := w.await(arrived, id)
		if string(d.Body) != `{"größe": "ÄÖÜ é"}` || d.RoutingKey != key || d.Headers["straße"] != "Ö" || d.Type != "überfällig" {
			t.Errorf("arrived: %q with routing key %q, headers %v, type %q", d.Body, d.RoutingKey, d.Headers, d.Type)
		}
	}
	// The broker's text goes into the table: it must fit the encoding.
	if dead := w.awaitDeadLetter(w.insert(row{"routing_key": key + "nobody"})); !strings.Contains(dead.LastError, "äöüß") {
		t.Errorf("the last error is %q", dead.LastError)
	}
	w.emptied()
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

// Values are read the same with any settings of the database.
func TestDatabaseSettingsDoNotChangeMessages(t *testing.T) {
	services.Thorough(t, "one of many environments")
	t.Parallel()
	w := newWorld(t).setUp()
	name := strings.TrimPrefix(mustURL(t, w.database).Path, "/")
	for setting, value := range map[string]string{
		"DateStyle": "'German, DMY'", "TimeZone": "'Asia/Kathmandu'", "IntervalStyle": "sql_standard", "bytea_output": "escape",
		"default_transaction_isolation": "serializable", "standard_conforming_strings": "off", "quote_all_identifiers": "on",
		"array_nulls": "off", "xmloption": "document", "search_path": "pg_catalog", "row_security": "off",
		"enable_seqscan": "off", "plan_cache_mode": "force_generic_plan", "idle_in_transaction_session_timeout": "'200ms'",
	} {
		w.exec(fmt.Sprintf("ALTER DATABASE %s SET %s = %s", name, setting, value))
	}
	created := time.Date(2024, 7, 6, 5, 4, 3, 0, time.FixedZone("", -5*3600))
	insert := func() (ids []string) {
		for i := range 50 {
			ids = append(ids, w.insert(row{"created_at": created, "payload_bytes": []byte{'\\', 0, 200}, "ordering_key": fmt.Sprint(i % 5)}))
		}
		return ids
	}
	ids := insert() // with the old settings: the pool's connections were opened before
	arrived := w.consume(w.queue)
	w.run("--backoff-time", "50ms", "--poll-interval", "50ms", "--max-retries", "1")
	ids = append(ids, insert()...)
	for _, id := range ids {
		if d := w.await(arrived, id); !d.Timestamp.Equal(created) || string(d.Body) != "\\\x00\xc8" {
			t.Errorf("arrived: created at %s, body %q", d.Timestamp, d.Body)
		}
	}
	scheduled := w.insert(row{"available_at": value[time.Time](w, `SELECT clock_timestamp() + interval '200 ms'`)})
	w.await(arrived, scheduled)
	if dead := w.awaitDeadLetter(w.insert(row{"exchange": "nowhere", "created_at": created})); dead.Attempts != 2 || !dead.CreatedAt.Equal(created) {
		t.Errorf("dead letter after %d attempts, created at %s", dead.Attempts, dead.CreatedAt)
	}
	w.emptied()
	noDuplicates(t, arrived)
}

// Created by hand with the same columns, it is streamed, swept and drained.
func TestAPartitionedOutboxIsPublished(t *testing.T) {
	services.Thorough(t, "one of many environments")
	t.Parallel()
	w := newWorld(t).setUp()
	w.exec(`ALTER TABLE outbox RENAME TO plain`)
	w.exec(`CREATE TABLE outbox (LIKE plain INCLUDING DEFAULTS INCLUDING CONSTRAINTS) PARTITION BY RANGE (id)`)
	w.exec(`ALTER TABLE outbox ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY, ADD PRIMARY KEY (id)`)
	w.exec(`CREATE INDEX ON outbox (available_at) WHERE available_at IS NOT NULL`)
	w.exec(`CREATE INDEX ON outbox (ordering_key, id) WHERE ordering_key IS NOT NULL`)
	w.exec(`CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM (1) TO (500)`)
	w.exec(`CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES FROM (500) TO (1000)`)
	w.exec(`CREATE TABLE outbox_rest PARTITION OF outbox DEFAULT`)
	w.exec(`DROP TABLE plain`)
	const some = `INSERT INTO outbox (routing_key, payload, ordering_key, available_at)
		SELECT $1, '{}', CASE WHEN n % 3 = 0 THEN (n % 7)::text END, CASE WHEN n % 4 = 0 THEN clock_timestamp() END FROM generate_series(1, 300) n`
	w.exec(some, w.queue)
	arrived := w.consume(w.queue)
	r := w.run("--max-retries", "0", "--poll-interval", "50ms")
	for range 3 {
		w.exec(some, w.queue)
	}
	w.eventually("all arrive", func() bool { return arrived.distinct() == 1200 })
	w.emptied()
	w.awaitDeadLetter(w.insert(row{"exchange": "nowhere"}))
	noDuplicates(t, arrived)
	if r.metric("cdc_relay_slot_held") != 1 {
		t.Error("the relay does not stream")
	}
	w.await(arrived, value[string](w, `INSERT INTO outbox_1 (id, routing_key, payload) VALUES (7, $1, '{}') RETURNING message_id::text`, w.queue))
	w.emptied()
	r.stop()
	w.exec(some, w.queue)
	w.succeeds("drain")
	w.emptied()
	w.eventually("all arrive", func() bool { return arrived.distinct() == 1501 })
}

// In transaction mode, settings of the relay would stay in sessions of applications.
func TestARelayBehindAPooler(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	direct := w.database
	w.database = services.PgBouncer(t, direct, "pool_mode = transaction")
	for _, args := range [][]string{{"run", "--mode", "poll"}, {"drain"}, {"setup", "--mode", "poll"}, {"list"}} {
		if out, code := w.command(args...); code == 0 || !strings.Contains(out, "shares server processes") || !strings.Contains(out, "pool_mode = session") {
			t.Errorf("%s: exit %d\n%s", args, code, out)
		}
	}
	w.database = services.PgBouncer(t, direct, "pool_mode = session")
	w.run("--mode", "poll", "--poll-interval", "50ms")
	w.await(arrived, w.insert(nil))
}
