package e2e

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/test/services"
)

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
