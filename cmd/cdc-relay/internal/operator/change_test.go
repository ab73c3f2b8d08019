package operator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// A row counts as unpublished only if no relay can have taken it, as for outbox_cancel.
func TestDeleteSaysWhichRowsMayBePublished(t *testing.T) {
	f := newFixture(t)
	for id, values := range []string{
		`now() + interval '1 hour', 0, NULL`,    // 1: scheduled
		`now() + interval '1 hour', 3, NULL`,    // 2: in retry
		`now() + interval '1 hour', 0, true`,    // 3: possibly published
		`now() - interval '1 second', 3, false`, // 4: due
		`NULL, 0, NULL`,                         // 5: the leader may stream it
		`now() + interval '1 hour', 0, false`,   // 6: locked
		`'infinity', 0, NULL`,                   // 7: never due
		`NULL, 0, NULL`,                         // 8: not selected
	} {
		f.Exec(`INSERT INTO outbox (id, routing_key, payload, available_at, attempts, possible_duplicate) VALUES ($1, 'r', '1', `+values+`)`, id+1)
	}
	f.lock(`SELECT 1 FROM outbox WHERE id = 6 FOR UPDATE`)
	change := operator.Change{Do: operator.Delete, Filter: operator.Filter{IDs: []int64{1, 2, 3, 4, 5, 6, 7, 99}}, Batch: 2}
	if n := f.count(change.Do, change.Filter); n != 7 {
		t.Errorf("%d are counted", n)
	}
	no := errors.New("no")
	done, err := f.operator().Change(t.Context(), change, func(total int64) error {
		if total != 7 {
			t.Errorf("asked about %d", total)
		}
		return no
	}, quiet)
	if !errors.Is(err, no) || done != (operator.Changed{Matched: 7}) || len(f.IDs("true")) != 8 {
		t.Fatalf("%+v, %v", done, err)
	}
	if done := f.change(change); done != (operator.Changed{Matched: 7, Done: 6, Unpublished: 3, Left: 1}) {
		t.Errorf("%+v", done)
	}
	equal(t, "rows left", f.IDs("true"), []int64{6, 8})
}

// Rows that go as well do not count, nor do rows before the first one that goes.
func TestADeletionCountsTheRowsBehind(t *testing.T) {
	f := newFixture(t)
	f.Exec(`INSERT INTO outbox (routing_key, payload, ordering_key, available_at, attempts) VALUES
		('r', '1', 'a', NULL, 0), ('r', '1', 'a', now() + interval '1 h', 2), ('r', '1', 'a', NULL, 0), ('r', '1', 'a', now() + interval '1 h', 1), ('r', '1', 'a', NULL, 0), -- 1 to 5
		('r', '1', 'b', now() + interval '1 h', 2), ('r', '1', NULL, now() + interval '2 h', 2), ('r', '1', NULL, NULL, 0), -- 6, 7, 8
		('r', '1', 'c', now() + interval '1 h', 0), ('r', '1', 'd', NULL, 0)`) // 9, 10
	f.Exec(`INSERT INTO outbox (routing_key, payload, ordering_key) SELECT 'r', '1', 'c' FROM generate_series(1, $1)`, operator.MostBehind+1)
	f.DeadLetter(1, "nack", "ordering_key", "'a'")
	for _, test := range []struct {
		do     operator.Verb
		filter operator.Filter
		want   operator.Count
	}{
		{operator.Delete, operator.Filter{State: operator.Retrying}, operator.Count{N: 2, Precision: operator.Exact}},
		{operator.Bury, operator.Filter{State: operator.Retrying, OrderingKey: text("b")}, operator.Count{Precision: operator.Exact}},
		{operator.Delete, operator.Filter{IDs: []int64{1, 2, 3}}, operator.Count{N: 2, Precision: operator.Exact}},
		{operator.Delete, operator.Filter{State: operator.Scheduled}, operator.Count{N: operator.MostBehind, Precision: operator.AtLeast}},
		{operator.Delete, operator.Filter{State: operator.Blocked}, operator.Count{N: 1, Precision: operator.AtLeast}},
		{operator.Purge, operator.Filter{Known: operator.Known{Block: true}}, operator.Count{N: 5, Precision: operator.Exact}},
	} {
		got, err := f.operator().Behind(t.Context(), operator.Change{Do: test.do, Filter: test.filter})
		if err != nil || got != test.want {
			t.Errorf("%s %+v: %+v, want %+v, %v", test.do, test.filter, got, test.want, err)
		}
	}
}

// A state selects what List shows, and locked rows by what they are otherwise: they stay, and are counted.
func TestDeleteSelectsRowsOfAState(t *testing.T) {
	for state, test := range map[operator.State]struct {
		want string
		left int64
	}{
		operator.AtOnce: {"[1]", 1}, operator.Due: {"[4]", 0}, operator.Retrying: {"[5]", 0}, operator.Scheduled: {"[6]", 0},
		operator.Blocked: {"[2]", 0}, operator.Expired: {"[7]", 0}, operator.NewerVersion: {"[8]", 0},
	} {
		f := newFixture(t)
		f.Exec(`INSERT INTO outbox (routing_key, payload, ordering_key, available_at, attempts, expires_at, schema_version) VALUES
			('r', '1', 'k', NULL, 0, NULL, 1), ('r', '1', 'k', NULL, 0, NULL, 1), ('r', '1', NULL, NULL, 0, NULL, 1), -- 1, 2, locked 3
			('r', '1', NULL, now() - interval '1 h', 2, NULL, 1), ('r', '1', NULL, now() + interval '1 h', 2, NULL, 1), -- 4, 5
			('r', '1', NULL, now() + interval '1 h', 0, NULL, 1), ('r', '1', NULL, NULL, 0, now(), 1), ('r', '1', NULL, NULL, 0, NULL, 2)`)
		f.lock(`SELECT 1 FROM outbox WHERE id = 3 FOR UPDATE`)
		before := f.IDs("true")
		all := operator.Change{Do: operator.Delete, Filter: operator.Filter{State: state}, Batch: 1}
		n, done := f.count(all.Do, all.Filter), f.change(all)
		after := f.IDs("true")
		gone := slices.DeleteFunc(before, func(id int64) bool { return slices.Contains(after, id) })
		if fmt.Sprint(gone) != test.want || done.Left != test.left || done.Matched != n || done.Done+done.Left != n {
			t.Errorf("%s: deleted %v of %d, want %s; %+v", state, gone, n, test.want, done)
		}
	}
}

func TestRetrySelectsWaitingRetries(t *testing.T) {
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
	others := func() string {
		return tabletest.One[string](f, `SELECT string_agg(outbox::text, ';' ORDER BY id) FROM outbox WHERE id = ANY($1)`,
			[]int64{rows["was not answered"], rows["is scheduled"], rows["is fresh"]})
	}
	before := others()
	dueAt := tabletest.One[time.Time](f, `SELECT available_at FROM outbox WHERE id = $1`, rows["is due"])

	if n := f.count(operator.Retry, operator.Filter{}); n != 4 || len(f.IDs("attempts > 0")) != 4 {
		t.Fatalf("count: %d", n)
	}
	if done := f.change(operator.Change{Do: operator.Retry, Batch: 2}); done != (operator.Changed{Matched: 4, Done: 4}) {
		t.Fatalf("got %+v", done)
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
	if after := others(); before != after {
		t.Errorf("rows that are not waiting retries were changed:\n%s\n%s", before, after)
	}
}

// Retry does not wait for a session that has locked a row.
func TestRetrySkipsLockedRows(t *testing.T) {
	f := newFixture(t)
	for range 2 {
		f.Insert(`(routing_key, payload, attempts, available_at) VALUES ('r', '1', 1, now() + interval '1 hour')`)
	}
	f.lock(`SELECT 1 FROM outbox ORDER BY id LIMIT 1 FOR UPDATE`)
	if done := f.change(operator.Change{Do: operator.Retry}); done != (operator.Changed{Matched: 2, Done: 1, Left: 1}) {
		t.Errorf("got %+v", done)
	}
}

func (f *fixture) history() {
	f.Helper()
	_, err := migrations.MakeHistory(f.Context(), f.Conn, tabletest.Name())
	must(f, err)
}

// published adds messages to the history: $id, its time of publication, its message_id and its routing key, FROM rows.
func (f *fixture) published(values, from string, args ...any) {
	f.Helper()
	f.Exec(`INSERT INTO outbox_published (id, published_at, message_id, routing_key, created_at, attempts, schema_version)
		SELECT `+values+`, now(), 0, 1 FROM `+from, args...)
}

func TestReplayedMessagesKeepTheirIDAndCarryTheMark(t *testing.T) {
	f := newFixture(t)
	f.history()
	f.Exec(`INSERT INTO outbox_published (id, created_at, published_at, message_id, attempts, schema_version, routing_key, exchange, ordering_key, payload, headers,
		expires_at, coalesce_key)
		SELECT i, now() - interval '1 min', now(), gen_random_uuid(), 2, 1, 'r' || i, 'x', 'k', to_json(i), '{"h": 1}', '2000-01-01', 'c' FROM generate_series(1, 5) i`)
	message := tabletest.One[[16]byte](f, `SELECT message_id FROM outbox_published WHERE id = 3`)
	if n := f.count(operator.Replay, operator.Filter{}); n != 5 || len(f.IDs("true")) != 0 {
		t.Errorf("count: %d", n)
	}
	there := operator.Copies{Exchange: text("other"), RoutingKey: text("there"), PerSecond: 1000}
	done := f.change(operator.Change{Do: operator.Replay, Filter: operator.Filter{NewerThan: time.Hour}, Batch: 2, Copies: there})
	if done != (operator.Changed{Matched: 5, Done: 5, LastID: 5}) {
		t.Errorf("%+v", done)
	}
	if got := tabletest.One[string](f, `SELECT string_agg(payload::text, '' ORDER BY id) FROM outbox WHERE exchange = 'other' AND routing_key = 'there' AND ordering_key = 'k'
		AND possible_duplicate AND available_at <= now() AND headers = '{"h": 1}' AND expires_at IS NULL AND coalesce_key IS NULL AND attempts = 0`); got != "12345" {
		t.Errorf("replayed: %s", got)
	}
	if got := tabletest.One[string](f, `SELECT payload::text FROM outbox WHERE message_id = $1`, message); got != "3" {
		t.Errorf("the message_id is that of message %s", got)
	}
	f.Exec(`DELETE FROM outbox`)
	done = f.change(operator.Change{Do: operator.Replay, Filter: operator.Filter{IDs: []int64{2}}, Batch: 1000})
	if done.Done != 1 || tabletest.One[string](f, `SELECT exchange || routing_key FROM outbox WHERE payload::text = '2'`) != "xr2" {
		t.Errorf("%+v", done)
	}
}

// An interrupted replay does not start again.
func TestAReplayContinuesAfterAnID(t *testing.T) {
	f := newFixture(t)
	f.history()
	f.published(`i, now(), gen_random_uuid(), 'r' || i`, `generate_series(1, 5) i`)
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
	f.published(`id + 10, now(), message_id, routing_key`, `outbox_published WHERE id <= 2`) // the copies
	done = f.change(operator.Change{Do: operator.Replay, Batch: 2, Copies: operator.Copies{AfterID: &done.LastID}})
	if done != (operator.Changed{Matched: 3, Done: 3, LastID: 5}) {
		t.Fatalf("%+v", done)
	}
	if n := tabletest.One[int](f, `SELECT count(DISTINCT message_id)::int FROM outbox`); n != 5 || len(f.IDs("true")) != 5 {
		t.Errorf("%d messages, %d rows", n, len(f.IDs("true")))
	}
}

// The history also has the copies of earlier replays.
func TestAReplayMakesOneCopyOfAMessage(t *testing.T) {
	f := newFixture(t)
	f.history()
	f.published(`i, now() + i * interval '1 s', ('00000000-0000-0000-0000-00000000000' || i % 2)::uuid, 'r' || i`, `generate_series(1, 6) i`)
	if done := f.change(operator.Change{Do: operator.Replay}); done.Done != 2 || tabletest.One[string](f, `SELECT string_agg(routing_key, ' ' ORDER BY id) FROM outbox`) != "r1 r2" {
		t.Errorf("%+v", done)
	}
}

// An INSERT that a trigger discards is no error.
func TestATriggerThatDiscardsRowsLosesNoMessage(t *testing.T) {
	f := newFixture(t)
	f.history()
	f.DeadLetter(1, "nack")
	f.DeadLetter(2, "nack")
	f.published(`3, now(), gen_random_uuid(), 'r'`, `(VALUES (1)) v`)
	f.Exec(`CREATE FUNCTION discard() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	f.Exec(`CREATE TRIGGER discards BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION discard()`)
	for verb, says := range map[operator.Verb]string{operator.Requeue: "keeps 0 of 2 rows", operator.Replay: "keeps 0 of 1 rows"} {
		done, err := f.operator().Change(t.Context(), operator.Change{Do: verb, Batch: 10}, nil, quiet)
		if done.Done != 0 || err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %+v, %v", verb, done, err)
		}
	}
	if n := tabletest.One[int](f, `SELECT count(*)::int FROM outbox_dead_letter`); n != 2 {
		t.Errorf("%d dead letters are left", n)
	}
}
