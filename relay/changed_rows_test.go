package relay

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/outboxtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

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
