package relay

import (
	"bytes"
	"log/slog"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/outboxtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// A large body is in memory once while the stream passes it, and once while it is published. RabbitMQ's refusal of the
// first body that is too large names its limit, so further ones are not read. No body is copied beyond that.
func TestALargeBodyNeedsLittleMoreMemoryThanItsSize(t *testing.T) {
	services.Thorough(t, "starts its own broker")
	i := newInstance(t)
	i.amqp = services.PrivateRabbitMQ(t, "max_message_size = 1000000").URL("")
	r, stop := i.start()
	i.await("the relay streams", func() bool { return r.Health().Role == "streaming" })
	const size = 40_000_000                  // more than the stream copies
	for n, most := range []float64{3, 1.5} { // 2.3 to 2.7, and one more for each copy
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		i.exec(`INSERT INTO outbox (routing_key, payload) VALUES ('nowhere', to_json(repeat('x', $1::int)))`, size)
		i.await("a dead letter", func() bool {
			var dead int
			err := i.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox_dead_letter WHERE failure_reason = 'too_large'
				AND last_error LIKE 'too_large: %message size 40000002 is larger than%max size 1000000%' AND attempts = 0`).Scan(&dead)
			return err == nil && dead == n+1
		})
		runtime.ReadMemStats(&after)
		if times := float64(after.TotalAlloc-before.TotalAlloc) / size; times > most {
			t.Errorf("body %d: %.1f times its size was allocated, want at most %.1f", n+1, times, most)
		} else {
			t.Logf("body %d: %.1f times its size was allocated", n+1, times)
		}
	}
	stop()
}

// Rows that need an answer of their own from a distant broker have a share of the window. They come first, and many of
// them still wait when all others have arrived. No attempt is charged for the wait.
func TestRowsInASlowLaneDoNotDelayOthers(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]string{
		"missing exchanges":        `'missing ' || n, 'k', to_json(n), NULL, NULL, NULL`,
		"missing exchanges, large": `'missing ' || n, 'k', to_json(repeat('x', 50000)), NULL, NULL, NULL`,
		"missing exchanges, keyed": `'missing ' || n, 'k', to_json(n), 'slow ' || n, NULL, NULL`,
		"a foreign user_id":        `'', 'nowhere', to_json(n), NULL, NULL, '{"user_id": "somebody-else"}'`,
	} {
		t.Run(name, func(t *testing.T) {
			if name != "missing exchanges" {
				services.Thorough(t, "the other kinds go the same way")
			}
			t.Parallel()
			i := newInstance(t)
			i.config.BackoffTime, i.config.MaxBackoff = time.Hour, time.Hour
			i.config.MaxInFlight = 400
			direct, err := url.Parse(i.amqp)
			must(t, err)
			proxy := services.NewProxy(t, direct.Host)
			direct.Host = proxy.Addr()
			i.amqp = direct.String()
			r, stop := i.start()
			i.await("the relay streams", func() bool { return r.Health().Role == "streaming" })
			proxy.Delay(50*time.Millisecond, services.Upstream, services.Downstream)
			const slow, others = 2000, 20
			i.exec(`INSERT INTO outbox (exchange, routing_key, payload, ordering_key, headers, properties)
				SELECT `+row+` FROM generate_series(1, $1) n`, slow)
			i.load(others)
			i.await("the others arrive", func() bool { return i.arrived() == others })
			var waiting int
			must(t, i.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox WHERE attempts = 0 AND routing_key <> $1`, i.queue).Scan(&waiting))
			if waiting < slow/2 {
				t.Errorf("%d of %d slow rows wait when the others have arrived, want most", waiting, slow)
			}
			proxy.Delay(0)
			stop()
		})
	}
}

// The stream brings no UPDATE: passes over the table find the rows.
func TestRowsChangedByHandLeave(t *testing.T) {
	services.Thorough(t, "waits for passes without a reason")
	i := newInstance(t)
	publisher := outboxtest.NewPublisher(nil)
	r, stop := i.startWith(publisher, prometheus.NewRegistry())
	i.await("the relay leads", func() bool { return r.core.View().Leader })
	changes := []struct{ insert, update string }{
		{"'r', NULL, 1, now() + '1 h'", "available_at = NULL"},
		{"'r', NULL, 1, 'infinity'", "available_at = NULL"},
		{"'r', NULL, 1, now() + '1 h'", "available_at = now()"},
		{"'r', NULL, 1, now() + '1 h'", "available_at = '0001-01-01 00:00:00+00'"},
		{"'r', 'a', 1, now() + '1 h'", "available_at = NULL"},
		{"'r', 'b', 1, now() + '1 h'", "available_at = '-infinity'"},
		{"'r', 'c', 1, now() + '1 h'", "available_at = NULL, ordering_key = NULL"},
		{"'r', NULL, 1, now() + '1 h'", "available_at = NULL, ordering_key = 'd'"},
		{"'r', NULL, 2, NULL", "schema_version = 1"},
		{"'r', 'e', 2, NULL", "schema_version = 1"},
	}
	for n, change := range changes {
		sql := `INSERT INTO outbox (routing_key, payload, ordering_key, schema_version, available_at, headers)
			SELECT s.r, '1', s.k, s.v, s.at::timestamptz, jsonb_build_object('n', $1::int) FROM (VALUES (` + change.insert + `)) s(r, k, v, at)`
		i.exec(sql, n)
	}
	i.await("the relay has read the rows", func() bool {
		return !r.core.View().Due && !r.core.View().Unseen && r.core.View().Wanted+r.core.View().Yielding == 0
	})
	began := time.Now()
	for n, change := range changes {
		i.exec(`UPDATE outbox SET `+change.update+` WHERE headers ->> 'n' = $1::int::text`, n)
	}
	i.await("the changed rows have left", func() bool { return i.rowsLeft() == 0 })
	t.Logf("they left after %s", time.Since(began))
	stop()
	if n := len(publisher.Messages()); n != len(changes) {
		t.Errorf("%d messages, want %d", n, len(changes))
	}
}

func rejecting() *outboxtest.Publisher {
	return outboxtest.NewPublisher(func(m *outbox.Message) outbox.Result {
		if m.RoutingKey == "bad" {
			return outbox.Result{Outcome: outbox.Rejected, Reason: outbox.ReasonNack}
		}
		return outbox.Result{}
	})
}

func (i *instance) counts() (left, dead, expired int) {
	i.t.Helper()
	err := i.db.QueryRow(i.t.Context(), `SELECT (SELECT count(*) FROM outbox), count(*), count(*) FILTER (WHERE failure_reason = 'expired')
		FROM outbox_dead_letter`).Scan(&left, &dead, &expired)
	must(i.t, err)
	return left, dead, expired
}

// A rejection that cannot be written is a fault: the relay names the row and does not publish it again and again.
func TestARejectionThatCannotBeWrittenIsReported(t *testing.T) {
	for _, c := range []struct {
		keeps      string // what the trigger keeps from happening
		dead, left int
	}{
		{"UPDATE", 1, 0},
		{"UPDATE OR DELETE", 0, 1},
	} {
		i := newInstance(t)
		for _, sql := range []string{
			`INSERT INTO outbox (routing_key, payload) VALUES ('bad', '1')`,
			`CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF OLD.routing_key = ''bad'' THEN RETURN NULL; END IF; RETURN CASE TG_OP WHEN ''DELETE'' THEN OLD ELSE NEW END; END'`,
			`CREATE TRIGGER keep BEFORE ` + c.keeps + ` ON outbox FOR EACH ROW EXECUTE FUNCTION keep()`,
			`INSERT INTO outbox (routing_key, payload, available_at) SELECT 'good', '1', now() FROM generate_series(1, 3)`,
		} {
			i.exec(sql)
		}
		publisher := rejecting()
		var log bytes.Buffer
		r := i.new(publisher, slog.NewTextHandler(&log, nil), prometheus.NewRegistry())
		err := r.Drain(t.Context())
		left, dead, _ := i.counts()
		if left != c.left || dead != c.dead || (err != nil) != (c.left > 0) || len(publisher.Messages()) != 4 {
			t.Errorf("%s: %d rows are left, %d dead letters, %d messages were published, %v", c.keeps, left, dead, len(publisher.Messages()), err)
		}
		if !strings.Contains(log.String(), "id=1 ") || !strings.Contains(log.String(), "left the row unchanged") {
			t.Errorf("%s: the log is\n%s", c.keeps, &log)
		}
	}
}
