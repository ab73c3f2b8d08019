package e2e

import (
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// rejection is a way in which the broker rejects one message.
type rejection struct {
	name   string
	row    row
	reason string // the code, in last_error and in the metric
	says   string // the broker's words, in last_error
}

func (w *world) rejections() []rejection {
	w.t.Helper()
	channel := w.channel()
	for _, name := range []string{"open", "without-queue"} {
		must(w.t, "declare", channel.ExchangeDeclare(w.queue+name, "direct", false, true, false, false, nil))
	}
	must(w.t, "bind", channel.QueueBind(w.queue, w.queue, w.queue+"open", false, nil))
	w.declareQueue(w.queue+"-full", amqp.Table{"x-max-length": int64(1), "x-overflow": "reject-publish"})
	w.insert(row{"routing_key": w.queue + "-full", "payload": `"fills it"`})
	return []rejection{
		{"an exchange that does not exist", row{"exchange": w.queue + "nowhere"}, "exchange_missing", "no exchange '" + w.queue + "nowhere'"},
		{"no queue bound", row{"exchange": w.queue + "without-queue"}, "unroutable", "NO_ROUTE"},
		{"no queue of that name", row{"routing_key": w.queue + "nobody"}, "unroutable", w.queue + "nobody"},
		{"a queue that rejects on overflow", row{"routing_key": w.queue + "-full"}, "nack", "rejected"},
	}
}

// Only this message is charged attempts, while others are in flight on the same connection.
func TestARejectedMessageIsRetriedThenDeadLettered(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	rejections := w.rejections()
	arrived, full := w.consume(w.queue), w.queue+"-full"
	r := w.run("--max-retries", "2", "--backoff-time", "30ms", "--poll-interval", "50ms")
	channel := w.channel()
	w.eventually("the queue with a limit is full", func() bool {
		q, err := channel.QueueDeclarePassive(full, true, false, false, false, nil)
		return err == nil && q.Messages == 1
	})
	ids := make([]string, len(rejections))
	const neighbours = 2000
	for part := range 10 {
		for i, c := range rejections {
			if part == i {
				ids[i] = w.insert(c.row)
			}
		}
		w.exec(`INSERT INTO outbox (exchange, routing_key, payload)
			SELECT CASE n % 2 WHEN 0 THEN $1 END, $2, '{}' FROM generate_series(1, $3) n`, w.queue+"open", w.queue, neighbours/10)
	}
	w.eventually("the neighbours arrive", func() bool { return arrived.distinct() == neighbours })
	for i, c := range rejections {
		dead := w.awaitDeadLetter(ids[i])
		if dead.Attempts != 3 || dead.FailureReason != "retries_exhausted" {
			t.Errorf("%s: dead after %d attempts with reason %q", c.name, dead.Attempts, dead.FailureReason)
		}
		if !strings.HasPrefix(dead.LastError, c.reason+": ") || !strings.Contains(dead.LastError, c.says) {
			t.Errorf("%s: the error is %q, want %q and %q", c.name, dead.LastError, c.reason, c.says)
		}
	}
	w.emptied()
	for reason, want := range map[string]float64{"exchange_missing": 3, "unroutable": 6, "nack": 3} {
		if n := r.metric(fmt.Sprintf(`cdc_relay_messages_refused_total{reason="%s"}`, reason)); n != want {
			t.Errorf("%v are counted as %s, want %v", n, reason, want)
		}
	}
	if n := r.rejections(); n != 12 {
		t.Errorf("%v rejections are counted, want three of each message", n)
	}
	arrived.allMarked()
	if n := w.deadLetters(); n != len(rejections) {
		t.Errorf("%d dead letters, want %d", n, len(rejections))
	}
}

// The relay reports it, and resumes by itself once it is fixed.
func TestPublishingStopsWhileRowsCannotBeDeleted(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct{ name, breaks, repairs, says string }{
		{
			"row-level security", `ALTER TABLE outbox ENABLE ROW LEVEL SECURITY`, `ALTER TABLE outbox DISABLE ROW LEVEL SECURITY`,
			"BYPASSRLS",
		},
		{
			"a trigger that keeps rows", `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER keep BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION keep()`, `DROP TRIGGER keep ON outbox`, "DISABLE TRIGGER keep",
		},
		{"a privilege that was revoked", `REVOKE DELETE ON outbox FROM relay`, `GRANT DELETE ON outbox TO relay`, "GRANT DELETE"},
	} {
		for _, mode := range []string{"auto", "poll"} {
			t.Run(fault.name+", "+mode, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t).setUp()
				role := w.asRelay()
				arrived := w.consume(w.queue)
				r := w.run("--mode", mode, "--poll-interval", "100ms")
				w.await(arrived, w.insert(nil))
				w.emptied()
				w.exec(strings.ReplaceAll(fault.breaks, "relay", role))
				w.insertUntil(20, func() bool {
					hidden := mode == "poll" && fault.says == "BYPASSRLS" // no row is found
					return r.metric("cdc_relay_publishing_stopped") == 1 || hidden && !r.ready()
				})
				stopped := arrived.distinct()
				page, _ := r.get("/readyz")
				if r.ready() || !strings.Contains(r.logs()+page, fault.says) {
					t.Errorf("/readyz says %q, and no line says %q", page, fault.says)
				}
				w.copyRows(50, w.queue)
				if mode == "auto" {
					w.eventually("rows are left in the table", func() bool { return r.metric("cdc_relay_messages_spilled_total") >= 50 })
				}
				if n := arrived.distinct(); n > stopped+20 {
					t.Errorf("%d messages have left, and %d when publishing had stopped", n, stopped)
				}
				w.exec(strings.ReplaceAll(fault.repairs, "relay", role))
				w.emptied()
				w.eventually("the relay is ready", r.ready)
				arrived.allMarked()
			})
		}
	}
}

// The relay also creates what is missing.
func TestARoleThatReadsOnlyByDefaultSetsUpAndPublishes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declareQueue(w.queue, nil)
	database := value[string](w, `SELECT quote_ident(current_database())`)
	role := w.as("REPLICATION", "CREATE ON DATABASE "+database, "CREATE, USAGE ON SCHEMA public")
	w.exec(`ALTER ROLE ` + role + ` SET default_transaction_read_only = on`)
	address := mustURL(t, w.database)
	query := address.Query()
	query.Set("target_session_attrs", "read-write")
	address.RawQuery = query.Encode()
	w.database = address.String()
	w.succeeds("setup", "--functions")
	arrived := w.consume(w.queue)
	w.exec(`DROP PUBLICATION ` + w.slot)
	r := w.run()
	w.eventually("the relay streams", func() bool { return r.metric("cdc_relay_slot_held") == 1 })
	for _, fields := range []row{nil, {"ordering_key": "k"}, {"available_at": "-infinity"}} {
		w.await(arrived, w.insert(fields))
	}
	w.insert(row{"exchange": "nowhere", "attempts": 100})
	w.eventually("a dead letter", func() bool { return w.deadLetters() == 1 })
	w.succeeds("resend", "--state", "dead", "--all")
	r.stop()
	if n := arrived.duplicates(); n != 0 || strings.Contains(r.logs(), "read-only") {
		t.Errorf("%d messages arrived twice", n)
	}
	w.exec(`DELETE FROM outbox`)
	w.succeeds("teardown", "--yes", "--tables")
	w.succeeds("setup", "--tables-only")
}

// The rows are published and stay in the table.
func TestDrainReportsRowsThatCannotBeDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	w.exec(`CREATE TABLE refers (id bigint REFERENCES outbox (id))`)
	w.exec(`WITH bad AS (INSERT INTO outbox (routing_key, payload) VALUES ($1, '{}') RETURNING id) INSERT INTO refers SELECT id FROM bad`, w.queue)
	w.fails([]string{"drain"}, "1 rows cannot be changed")
}

// asRelay logs in as a role with the grants of a relay.
func (w *world) asRelay() (role string) {
	return w.as("REPLICATION", "SELECT, INSERT, UPDATE, DELETE ON outbox, outbox_dead_letter", "SELECT ON SEQUENCE outbox_id_seq", "SELECT, UPDATE ON outbox_migrations", "pg_read_all_stats")
}

func (w *world) insertUntil(n int, condition func() bool) {
	w.t.Helper()
	w.copyRows(n, w.queue)
	w.eventually("the condition holds", func() bool {
		w.insert(nil)
		return condition()
	})
}
