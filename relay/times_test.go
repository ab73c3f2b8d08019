package relay

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

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
