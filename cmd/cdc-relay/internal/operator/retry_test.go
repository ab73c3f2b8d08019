package operator_test

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestRetryNowSelectsWaitingRetries(t *testing.T) {
	f := newFixture(t)
	rows := map[string]int64{}
	for name, values := range map[string]string{
		"waits":               `3, now() + interval '10 minutes', false, 'unroutable: no'`,
		"waits, nacked":       `3, now() + interval '10 minutes', true, 'nack: full'`,
		"waits, never marked": `1, now() + interval '10 seconds', NULL, 'unroutable: no'`,
		"is due":              `2, now() - interval '10 seconds', true, 'nack: full'`,
		"was not answered":    `0, now() + interval '30 seconds', true, NULL`,
		"is scheduled":        `0, now() + interval '1 hour', NULL, NULL`,
		"is fresh":            `0, NULL, NULL, NULL`,
	} {
		rows[name] = f.Insert(`(attempts, available_at, possible_duplicate, last_error, routing_key, payload) VALUES (` + values + `, 'r', '1')`)
	}
	before := tabletest.One[string](f, `SELECT string_agg(outbox::text, ';' ORDER BY id) FROM outbox WHERE id = ANY($1)`,
		[]int64{rows["was not answered"], rows["is scheduled"], rows["is fresh"]})
	dueAt := tabletest.One[time.Time](f, `SELECT available_at FROM outbox WHERE id = $1`, rows["is due"])

	dry, err := f.operator().RetryNow(t.Context(), operator.Filter{}, 2, true, nil, quiet)
	if err != nil || dry != (operator.Retried{Due: 4}) || len(f.IDs("attempts > 0")) != 4 {
		t.Fatalf("dry: %+v, %v", dry, err)
	}
	done, err := f.operator().RetryNow(t.Context(), operator.Filter{}, 2, false, nil, quiet)
	if err != nil || done != (operator.Retried{Due: 4}) {
		t.Fatalf("got %+v, %v", done, err)
	}
	for _, name := range []string{"waits", "waits, nacked", "waits, never marked", "is due"} {
		if !tabletest.One[bool](f, `SELECT attempts = 0 AND available_at <= clock_timestamp() AND last_error IS NOT NULL FROM outbox WHERE id = $1`, rows[name]) {
			t.Errorf("the row that %s did not become due", name)
		}
	}
	// Without the mark, a second publication would look like the first.
	if !tabletest.One[bool](f, `SELECT possible_duplicate FROM outbox WHERE id = $1`, rows["waits, nacked"]) {
		t.Error("a mark is gone")
	}
	if got := tabletest.One[time.Time](f, `SELECT available_at FROM outbox WHERE id = $1`, rows["is due"]); !got.Equal(dueAt) {
		t.Error("the time of a due row was changed, which a relay may rely on")
	}
	after := tabletest.One[string](f, `SELECT string_agg(outbox::text, ';' ORDER BY id) FROM outbox WHERE id = ANY($1)`,
		[]int64{rows["was not answered"], rows["is scheduled"], rows["is fresh"]})
	if before != after {
		t.Errorf("rows that are not waiting retries were changed:\n%s\n%s", before, after)
	}
}

func TestRetryNowAppliesFilters(t *testing.T) {
	f := newFixture(t)
	for _, values := range []string{`'a', 'unroutable: no', NULL, NULL`, `'a', 'exchange_missing: no', 'x', NULL`, `'b', 'unroutable: no', NULL, 'k'`} {
		f.Exec(`INSERT INTO outbox (routing_key, last_error, exchange, ordering_key, attempts, available_at, payload)
			VALUES (` + values + `, 1, now() + interval '1 hour', '1')`)
	}
	for _, test := range []struct {
		filter operator.Filter
		want   int64
	}{
		{operator.Filter{Reason: text("unroutable")}, 2},
		{operator.Filter{RoutingKey: pattern("a")}, 2},
		{operator.Filter{Exchange: text("x")}, 1},
		{operator.Filter{OrderingKey: text("k")}, 1},
		{operator.Filter{OlderThan: time.Hour}, 0},
		{operator.Filter{NewerThan: time.Hour}, 3},
	} {
		got, err := f.operator().RetryNow(t.Context(), test.filter, 10, true, nil, quiet)
		if err != nil || got.Due != test.want {
			t.Errorf("%+v: %+v, %v, want %d", test.filter, got, err, test.want)
		}
	}
}

// A row that a relay publishes is locked; RetryNow does not wait for it.
func TestRetryNowSkipsLockedRows(t *testing.T) {
	f := newFixture(t)
	for range 2 {
		f.Insert(`(routing_key, payload, attempts, available_at) VALUES ('r', '1', 1, now() + interval '1 hour')`)
	}
	other := tabletest.Connect(t, f.URL)
	if _, err := other.Exec(t.Context(), `BEGIN; SELECT 1 FROM outbox ORDER BY id LIMIT 1 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	done, err := f.operator().RetryNow(t.Context(), operator.Filter{}, 10, false, nil, quiet)
	if err != nil || done != (operator.Retried{Due: 1, Left: 1}) {
		t.Errorf("got %+v, %v", done, err)
	}
}

// A relay that was killed in a claim may have published the row.
func TestRetryNowKeepsTheTraceOfAClaim(t *testing.T) {
	f := newFixture(t)
	f.Exec(`INSERT INTO outbox (routing_key, payload, attempts, available_at, last_error) SELECT 'r', '1', 1, now() - interval '1 s', 'nack: no' FROM generate_series(1, 2)`)
	s := f.store()
	claim, err := s.Lock(t.Context(), []int64{1}, outbox.AllFresh(), "")
	if err != nil || len(claim.Messages) != 1 {
		t.Fatal(err)
	}
	claim.Abandon() // as the server does when the relay dies
	done, err := f.operator().RetryNow(t.Context(), operator.Filter{}, 10, false, nil, quiet)
	if err != nil || done.Due != 2 {
		t.Fatalf("%+v, %v", done, err)
	}
	for _, m := range f.claimed() {
		if m.PossibleDuplicate != (m.ID == 1) {
			t.Errorf("row %d is marked: %v", m.ID, m.PossibleDuplicate)
		}
	}
}
