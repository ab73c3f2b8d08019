package e2e

import (
	"cmp"
	"reflect"
	"slices"
	"strconv"
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

// The attempts of a row stop at the column's maximum, and the wait at --max-backoff.
func TestUnlimitedRetriesNeverEndInADeadLetter(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	w.exec(`INSERT INTO outbox (routing_key, payload, attempts, max_attempts) VALUES
		('nowhere', '1', 0, NULL), ('nowhere', '2', 2147483647, NULL), ('nowhere', '3', 2147483646, 0), ('nowhere-once', '4', 0, 1)`)
	w.exec(`INSERT INTO outbox (routing_key, payload, ordering_key) VALUES ('nowhere', '5', 'k'), ($1, '6', 'k')`, w.queue)
	r := w.run("--max-retries", "unlimited", "--backoff-time", "10ms", "--max-backoff", "50ms", "--poll-interval", "20ms")
	w.exec(`INSERT INTO outbox (routing_key, payload) VALUES ('nowhere', '7')`) // streamed
	w.eventually("rows are retried more often than by default, and one with a limit of its own is dead", func() bool {
		return value[int](w, `SELECT count(*) FROM outbox WHERE attempts > 6`) == 5 &&
			value[string](w, `SELECT coalesce(string_agg(routing_key, ','), '') FROM outbox_dead_letter`) == "nowhere-once"
	})
	if n := value[int](w, `SELECT count(*) FROM outbox WHERE attempts = 2147483647`); n != 2 {
		t.Errorf("%d rows stopped counting", n)
	}
	w.eventually("the message behind an endless one is seen to be late", func() bool {
		return r.metric("cdc_relay_oldest_pending_seconds") > 1
	})
	if !strings.Contains(r.logs(), `"max_retries":"unlimited"`) {
		t.Errorf("the first line of the log has no setting:\n%s", r.logs())
	}
	r.stop()
	w.exec(`UPDATE outbox SET available_at = now() + interval '1 h'`)
	for id, words := range map[string]string{"1": "again without a limit (--max-retries unlimited)", "3": "again without a limit (max_attempts 0)"} {
		out, _ := w.command("explain", id, "--max-retries", "unlimited")
		if !strings.Contains(out, words) {
			t.Errorf("explain %s:\n%s", id, out)
		}
	}
}

// Rows that expire while they wait become dead letters at their turn, and their keys continue. Published messages carry
// the remaining time.
func TestExpiredRowsBecomeDeadLetters(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	arrived := w.channel()
	insert := func(name string, more row) {
		more["routing_key"], more["payload"] = cmp.Or(more["routing_key"], any(w.queue)), `"`+name+`"`
		w.insert(more)
	}
	expires := func(in string) any { return value[time.Time](w, `SELECT clock_timestamp() + $1::text::interval`, in) }
	// No relay runs, as in a long outage.
	insert("late", row{"expires_at": expires("-1 s")})
	insert("late head", row{"ordering_key": "a", "expires_at": expires("-1 s")})
	insert("late follower", row{"ordering_key": "a", "expires_at": expires("-1 s")})
	insert("behind them", row{"ordering_key": "a"})
	insert("due too late", row{"available_at": expires("2 s"), "expires_at": expires("1 s")})
	insert("in time", row{"expires_at": expires("1 h")})
	r := w.run("--backoff-time", "1h", "--poll-interval", "50ms")
	w.eventually("the stream is live", func() bool { return r.metric("cdc_relay_stream_connected") == 1 })
	// Streamed.
	insert("streamed late", row{"expires_at": expires("-1 s")})
	insert("streamed in time", row{"expires_at": expires("1 h"), "properties": `{"expiration": 60000}`})
	// Its retry would come in an hour.
	insert("rejected", row{"routing_key": "nowhere", "ordering_key": "b", "expires_at": expires("5 s")})
	insert("behind it", row{"ordering_key": "b"})
	w.eventually("everything has left the outbox", w.outboxEmpty)
	got := map[string]string{}
	for range 4 {
		d, ok, err := arrived.Get(w.queue, true)
		if err != nil || !ok {
			t.Fatalf("%v, %v; got %v", ok, err, got)
		}
		got[string(d.Body)] = d.Expiration
	}
	if _, more, _ := arrived.Get(w.queue, true); more || got[`"behind them"`] != "" || got[`"behind it"`] != "" || got[`"streamed in time"`] != "60000" {
		t.Errorf("got %v", got)
	}
	if ms, err := strconv.Atoi(got[`"in time"`]); err != nil || ms < 3_000_000 || ms > 3_600_000 {
		t.Errorf("expiration %q", got[`"in time"`])
	}
	dead := query[string](w, `SELECT payload::text || ' ' || failure_reason || ' ' || split_part(last_error, ':', 1) FROM outbox_dead_letter ORDER BY id`)
	want := []string{
		`"late" expired expired`, `"late head" expired expired`, `"late follower" expired expired`, `"due too late" expired expired`,
		`"streamed late" expired expired`, `"rejected" expired unroutable`,
	}
	if !slices.Equal(dead, want) {
		t.Errorf("dead letters %q", dead)
	}
	if n := r.metric("cdc_relay_messages_expired_total"); n != 6 {
		t.Errorf("%v are counted as expired", n)
	}
	// Requeued messages do not expire again.
	w.succeeds("resend", "--state", "dead", "--reason", "expired", "--routing-key", w.queue)
	w.eventually("the requeued message arrives", func() bool {
		q, err := arrived.QueueDeclarePassive(w.queue, true, false, false, false, nil)
		return err == nil && q.Messages == 5 && w.outboxEmpty()
	})
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

// Such columns are copied to the dead letters and back, if both tables have them.
func TestRequeuedRowsKeepColumnsOfTheApplication(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	w.exec(`ALTER TABLE outbox ADD tenant text NOT NULL, ADD nth integer, ADD "Odd "" name" text, ADD alone text, ADD other text`)
	w.exec(`ALTER TABLE outbox_dead_letter ADD nth integer, ADD tenant text NOT NULL, ADD "Odd "" name" text, ADD other integer`)
	const row = `INSERT INTO outbox (routing_key, payload, tenant, nth, "Odd "" name", alone, other) VALUES ('nowhere', $1::text::json, 'acme', 7, 'odd', 'alone', 'x')`
	w.exec(row, "1")
	r := w.run("--max-retries", "0", "--poll-interval", "50ms") // swept
	w.exec(row, "2")                                            // streamed
	const same = `tenant = 'acme' AND nth = 7 AND "Odd "" name" = 'odd'`
	dead := func(n int) func() bool {
		return func() bool { return value[int](w, `SELECT count(*) FROM outbox_dead_letter WHERE `+same) == n }
	}
	w.eventually("both are dead letters, with their columns", dead(2))
	// Also columns that change while the relay runs.
	w.exec(`ALTER TABLE outbox_dead_letter DROP nth`)
	w.exec(row, "3")
	w.eventually("the third is a dead letter", func() bool {
		return value[int](w, `SELECT count(*) FROM outbox_dead_letter WHERE tenant = 'acme' AND payload::text = '3'`) == 1
	})
	r.stop()
	w.exec(`DELETE FROM outbox_dead_letter WHERE payload::text = '3'`)
	w.exec(`ALTER TABLE outbox_dead_letter ADD nth integer`)
	w.exec(`UPDATE outbox_dead_letter SET nth = 7`)
	w.succeeds("resend", "--state", "dead", "--all")
	if n := value[int](w, `SELECT count(*) FROM outbox WHERE alone IS NULL AND `+same); n != 2 {
		t.Errorf("%d rows were requeued with their columns", n)
	}
}
