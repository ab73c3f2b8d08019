package operator_test

import (
	"errors"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/internal/tabletest"
	"github.com/cdc-relay/cdc-relay/migrations"
)

// history creates the table of published messages.
func (f *fixture) history() {
	f.Helper()
	if _, err := migrations.MakeHistory(f.Context(), f.Conn, tabletest.Name()); err != nil {
		f.Fatal(err)
	}
}

func TestWithoutAHistoryItsListSaysSo(t *testing.T) {
	f := newFixture(t)
	if _, err := f.operator().PublishedMessages(t.Context(), operator.Filter{}, operator.Page{Limit: 1}); !errors.Is(err, operator.ErrNoHistory) {
		t.Errorf("without a history: %v", err)
	}
}

func TestReplayedMessagesKeepTheirIDAndCarryTheMark(t *testing.T) {
	f := newFixture(t)
	f.history()
	f.Exec(`INSERT INTO outbox_published (id, created_at, published_at, message_id, attempts, schema_version, routing_key, exchange, ordering_key, payload, headers,
		expires_at, coalesce_key)
		SELECT i, now() - interval '1 min', now(), gen_random_uuid(), 2, 1, 'r' || i, 'x', 'k', to_json(i), '{"h": 1}', '2000-01-01', 'c' FROM generate_series(1, 5) i`)
	message := tabletest.One[[16]byte](f, `SELECT message_id FROM outbox_published WHERE id = 3`)
	o := f.operator()
	dry, matched, err := o.Replay(t.Context(), operator.Filter{}, operator.Replay{Batch: 2, Dry: true}, quiet)
	if err != nil || dry != 0 || matched != 5 || len(f.IDs("true")) != 0 {
		t.Errorf("dry: %d of %d, %v", dry, matched, err)
	}
	n, matched, err := o.Replay(t.Context(), operator.Filter{NewerThan: time.Hour}, operator.Replay{Batch: 2, Exchange: text("other"), RoutingKey: text("there"), PerSecond: 1000}, quiet)
	if err != nil || n != 5 || matched != 5 {
		t.Errorf("%d of %d, %v", n, matched, err)
	}
	if got := tabletest.One[string](f, `SELECT string_agg(payload::text, '' ORDER BY id) FROM outbox WHERE exchange = 'other' AND routing_key = 'there' AND ordering_key = 'k'
		AND possible_duplicate AND available_at <= now() AND headers = '{"h": 1}' AND expires_at IS NULL AND coalesce_key IS NULL AND attempts = 0`); got != "12345" {
		t.Errorf("replayed: %s", got)
	}
	if got := tabletest.One[string](f, `SELECT payload::text FROM outbox WHERE message_id = $1`, message); got != "3" {
		t.Errorf("the message_id is that of message %s", got)
	}
	marked := 0
	for _, m := range f.claimed() {
		if m.PossibleDuplicate {
			marked++
		}
	}
	if marked != 5 {
		t.Errorf("%d of 5 are marked", marked)
	}
	f.Exec(`DELETE FROM outbox`)
	n, _, err = o.Replay(t.Context(), operator.Filter{IDs: []int64{2}}, operator.Replay{Batch: 1000}, quiet)
	if err != nil || n != 1 || tabletest.One[string](f, `SELECT exchange || routing_key FROM outbox WHERE payload::text = '2'`) != "xr2" {
		t.Errorf("%d, %v", n, err)
	}
}
