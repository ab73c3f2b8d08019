package operator_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// history creates the table of published messages.
func (f *fixture) history() {
	f.Helper()
	if _, err := migrations.MakeHistory(f.Context(), f.Conn, tabletest.Name()); err != nil {
		f.Fatal(err)
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
	if n, err := o.Count(t.Context(), operator.Change{Do: operator.Replay}); err != nil || n != 5 || len(f.IDs("true")) != 0 {
		t.Errorf("count: %d, %v", n, err)
	}
	done, err := o.Change(t.Context(), operator.Change{Do: operator.Replay, Filter: operator.Filter{NewerThan: time.Hour}, Batch: 2, Copies: operator.Copies{Exchange: text("other"), RoutingKey: text("there"), PerSecond: 1000}}, nil, quiet)
	if err != nil || done != (operator.Changed{Matched: 5, Done: 5, LastID: 5}) {
		t.Errorf("%+v, %v", done, err)
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
	done, err = o.Change(t.Context(), operator.Change{Do: operator.Replay, Filter: operator.Filter{IDs: []int64{2}}, Batch: 1000}, nil, quiet)
	if err != nil || done.Done != 1 || tabletest.One[string](f, `SELECT exchange || routing_key FROM outbox WHERE payload::text = '2'`) != "xr2" {
		t.Errorf("%+v, %v", done, err)
	}
}

// An interrupted replay does not start again.
func TestAReplayContinuesAfterAnID(t *testing.T) {
	f := newFixture(t)
	f.history()
	f.Exec(`INSERT INTO outbox_published (id, created_at, published_at, message_id, attempts, schema_version, routing_key)
		SELECT i, now(), now(), gen_random_uuid(), 0, 1, 'r' || i FROM generate_series(1, 5) i`)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done, err := f.operator().Change(ctx, operator.Change{Do: operator.Replay, Batch: 2}, nil, func(n, _ int64) {
		if n == 2 {
			stop()
		}
	})
	if !errors.Is(err, context.Canceled) || done != (operator.Changed{Matched: 5, Done: 2, LastID: 2}) {
		t.Fatalf("%+v, %v", done, err)
	}
	f.Exec(`INSERT INTO outbox_published (id, created_at, published_at, message_id, attempts, schema_version, routing_key)
		SELECT id + 10, created_at, now(), message_id, 0, 1, routing_key FROM outbox_published WHERE id <= 2`) // the copies
	done, err = f.operator().Change(t.Context(), operator.Change{Do: operator.Replay, Batch: 2, Copies: operator.Copies{AfterID: &done.LastID}}, nil, quiet)
	if err != nil || done != (operator.Changed{Matched: 3, Done: 3, LastID: 5}) {
		t.Fatalf("%+v, %v", done, err)
	}
	if n := tabletest.One[int](f, `SELECT count(DISTINCT message_id)::int FROM outbox`); n != 5 || len(f.IDs("true")) != 5 {
		t.Errorf("%d messages, %d rows", n, len(f.IDs("true")))
	}
}

// The history also has the copies of earlier replays.
func TestAReplayMakesOneCopyOfAMessage(t *testing.T) {
	f := newFixture(t)
	f.history()
	f.Exec(`INSERT INTO outbox_published (id, created_at, published_at, message_id, attempts, schema_version, routing_key)
		SELECT i, now(), now() + i * interval '1 s', ('00000000-0000-0000-0000-00000000000' || i % 2)::uuid, 0, 1, 'r' || i FROM generate_series(1, 6) i`)
	done, err := f.operator().Change(t.Context(), operator.Change{Do: operator.Replay, Batch: 10}, nil, quiet)
	if err != nil || done.Done != 2 || tabletest.One[string](f, `SELECT string_agg(routing_key, ' ' ORDER BY id) FROM outbox`) != "r1 r2" {
		t.Errorf("%+v, %v", done, err)
	}
}

// An INSERT that a trigger discards is no error.
func TestATriggerThatDiscardsRowsLosesNoMessage(t *testing.T) {
	f := newFixture(t)
	f.history()
	f.DeadLetter(1, "nack")
	f.DeadLetter(2, "nack")
	f.Exec(`INSERT INTO outbox_published (id, created_at, published_at, message_id, attempts, schema_version, routing_key)
		VALUES (3, now(), now(), gen_random_uuid(), 0, 1, 'r')`)
	f.Exec(`CREATE FUNCTION discard() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	f.Exec(`CREATE TRIGGER discards BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION discard()`)
	requeued, err := f.operator().Change(t.Context(), operator.Change{Do: operator.Requeue, Batch: 10}, nil, quiet)
	if requeued.Done != 0 || err == nil || !strings.Contains(err.Error(), "keeps 0 of 2 rows") {
		t.Errorf("%+v, %v", requeued, err)
	}
	if n := tabletest.One[int](f, `SELECT count(*)::int FROM outbox_dead_letter`); n != 2 {
		t.Errorf("%d dead letters are left", n)
	}
	done, err := f.operator().Change(t.Context(), operator.Change{Do: operator.Replay, Batch: 10}, nil, quiet)
	if done.Done != 0 || err == nil || !strings.Contains(err.Error(), "keeps 0 of 1 rows") {
		t.Errorf("%+v, %v", done, err)
	}
}
