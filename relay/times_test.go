package relay

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/outboxtest"
)

// rejecting returns a publisher that rejects messages with the routing key bad and confirms the others.
func rejecting() *outboxtest.Publisher {
	return outboxtest.NewPublisher(func(m *outbox.Message) outbox.Result {
		if m.RoutingKey == "bad" {
			return outbox.Result{Outcome: outbox.Rejected, Reason: outbox.ReasonNack}
		}
		return outbox.Result{}
	})
}

// counts returns the numbers of rows in the outbox, of dead letters, and of those that have expired.
func (i *instance) counts() (left, dead, expired int) {
	i.t.Helper()
	err := i.db.QueryRow(i.t.Context(), `SELECT (SELECT count(*) FROM outbox), count(*), count(*) FILTER (WHERE failure_reason = 'expired')
		FROM outbox_dead_letter`).Scan(&left, &dead, &expired)
	if err != nil {
		i.t.Fatal(err)
	}
	return left, dead, expired
}

// Go's zero time and other unusual times are never taken for null, on all ways out of the table.
func TestRowsOfAnyTimeLeave(t *testing.T) {
	i := newInstance(t)
	i.config.MaxRetries, i.config.BackoffTime = 1, time.Millisecond
	times := []string{
		"0001-01-01 00:00:00+00", "0001-01-01 00:00:00+00 BC", "4713-01-01 00:00:00+00 BC", "-infinity", "1970-01-01 00:00:00+00",
		"0001-06-01 12:00:00.000001+00",
	}
	insert := func() {
		t.Helper()
		for n, at := range times {
			for _, sql := range []string{
				`INSERT INTO outbox (routing_key, payload, available_at, ordering_key) VALUES ('good', '1', $1, NULL), ('bad', '1', $1, NULL),
					('bad', '1', $1, 'key ' || $2), ('good', '1', $1, 'key ' || $2)`,
				`INSERT INTO outbox (routing_key, payload, expires_at, ordering_key) VALUES ('good', '1', $1, NULL), ('good', '1', $1, 'late ' || $2)`,
				`INSERT INTO outbox (routing_key, payload, created_at, ordering_key) VALUES ('good', '1', $1, NULL), ('bad', '1', $1, 'old ' || $2)`,
			} {
				args := []any{at, fmt.Sprint(n)}
				if _, err := i.db.Exec(t.Context(), strings.ReplaceAll(strings.ReplaceAll(sql, "$1", "$1::timestamptz"), "$2", "$2::text"), args...); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	rounds := 0
	gone := func() bool {
		left, dead, expired := i.counts()
		return left == 0 && dead == 5*len(times)*rounds && expired == 2*len(times)*rounds
	}
	for _, mode := range []Mode{ModePoll, ModeAuto} {
		i.config.Mode = mode
		insert()
		rounds++
		r, stop := i.startWith(rejecting(), prometheus.NewRegistry())
		i.await("rows from before the start have left", gone)
		i.await("the relay leads or polls", func() bool { return mode == ModePoll || r.core.View().Leader })
		insert()
		rounds++
		i.await("rows have left", gone)
		stop()
	}
	insert()
	rounds++
	r, err := New(i.config, rejecting(), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Drain(t.Context()); err != nil || !gone() {
		left, dead, expired := i.counts()
		t.Errorf("after a drain %d rows are left, %d dead letters, %d expired, %v", left, dead, expired, err)
	}
	if n := i.number(`SELECT count(*) FROM outbox_dead_letter WHERE failure_reason <> 'expired' AND attempts <> 2`); n != 0 {
		t.Errorf("%d dead letters do not have two attempts", n)
	}
}

func (i *instance) number(sql string) (n int) {
	i.t.Helper()
	if err := i.db.QueryRow(i.t.Context(), sql).Scan(&n); err != nil {
		i.t.Fatal(err)
	}
	return n
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
			if _, err := i.db.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		publisher := rejecting()
		var log bytes.Buffer
		r, err := New(i.config, publisher, slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		err = r.Drain(t.Context())
		left, dead, _ := i.counts()
		if left != c.left || dead != c.dead || (err != nil) != (c.left > 0) || len(publisher.Messages()) != 4 {
			t.Errorf("%s: %d rows are left, %d dead letters, %d messages were published, %v", c.keeps, left, dead, len(publisher.Messages()), err)
		}
		if !strings.Contains(log.String(), "id=1 ") || !strings.Contains(log.String(), "left the row unchanged") {
			t.Errorf("%s: the log is\n%s", c.keeps, &log)
		}
	}
}
