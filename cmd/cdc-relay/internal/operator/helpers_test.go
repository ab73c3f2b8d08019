package operator_test

import (
	"cmp"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

type fixture struct{ *tabletest.Tables }

func newFixture(t *testing.T) *fixture { return &fixture{tabletest.New(t)} }

func (f *fixture) operator() *operator.Tables {
	f.Helper()
	o, err := operator.New(f.Context(), tabletest.Connect(f, f.URL), tabletest.Name())
	must(f, err)
	return o
}

// change changes rows, at most ten in a batch unless the change says how many.
func (f *fixture) change(c operator.Change) operator.Changed {
	f.Helper()
	c.Batch = cmp.Or(c.Batch, 10)
	done, err := f.operator().Change(f.Context(), c, nil, quiet)
	must(f, err)
	return done
}

func (f *fixture) count(do operator.Verb, filter operator.Filter) int64 {
	f.Helper()
	n, err := f.operator().Count(f.Context(), operator.Change{Do: do, Filter: filter})
	must(f, err)
	return n
}

func (f *fixture) lock(sql string) {
	f.Helper()
	tabletest.Begin(f, tabletest.Connect(f, f.URL), sql)
}

func name(t testing.TB, text string) operator.Name {
	t.Helper()
	n, err := operator.ParseName(text)
	must(t, err)
	return n
}

func quiet(int64, int64) {}

func text(s string) *string { return &s }

func pattern(s string) *operator.Pattern {
	p, err := operator.ParsePattern(s)
	if err != nil {
		panic(err)
	}
	return &p
}

func equal[T any](t testing.TB, what string, got, want []T) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestRequeueKeepsEverythingButTheAttempts(t *testing.T) {
	f := newFixture(t)
	f.Exec(`SELECT setval('outbox_id_seq', 100)`)
	f.DeadLetter(7, "retries_exhausted", "exchange", "'x'", "ordering_key", "'k'", "headers", `'{"h":1}'`, "properties", `'{"type":"t"}'`,
		"redacted_payload", `'"***"'`, "possible_duplicate", "true", "last_error", "'nack: full'",
		"expires_at", "'2030-01-01'", "max_attempts", "9", "coalesce_key", "'c'")
	message := tabletest.One[[16]byte](f, `SELECT message_id FROM outbox_dead_letter`)
	if got := f.change(operator.Change{Do: operator.Requeue}); got != (operator.Changed{Matched: 1, Done: 1}) {
		t.Errorf("got %+v", got)
	}
	same := tabletest.One[bool](f, `SELECT id = 7 AND message_id = $1 AND exchange = 'x' AND ordering_key = 'k' AND headers = '{"h":1}'
		AND properties = '{"type":"t"}' AND redacted_payload::text = '"***"' AND payload::text = '{"n":1}' AND possible_duplicate
		AND expires_at = '2030-01-01' AND max_attempts = 9 AND coalesce_key = 'c' AND attempts = 0 AND last_error IS NULL AND available_at <= clock_timestamp() AND created_at < now() - interval '23 hours' FROM outbox`, message)
	if !same || tabletest.One[int](f, `SELECT count(*) FROM outbox_dead_letter`) != 0 {
		t.Error("the row has changed")
	}
}

func TestRequeueInBatchesKeepsTheOrderOfAKey(t *testing.T) {
	f := newFixture(t)
	f.Exec(`SELECT setval('outbox_id_seq', 100)`)
	waiting := f.Insert("(routing_key, payload, ordering_key) VALUES ('r', '1', 'k')")
	for _, id := range []int64{9, 3, 5} {
		f.DeadLetter(id, "nack", "ordering_key", "'k'")
	}
	var told [][2]int64
	done, err := f.operator().Change(t.Context(), operator.Change{Do: operator.Requeue, Filter: operator.Filter{OrderingKey: text("k")}, Batch: 2}, nil, func(n, total int64) { told = append(told, [2]int64{n, total}) })
	if err != nil || done.Done != 3 {
		t.Fatalf("%+v, %v", done, err)
	}
	if len(told) != 3 || told[0] != [2]int64{0, 3} || told[2] != [2]int64{3, 3} {
		t.Errorf("progress: %v", told)
	}
	equal(t, "rows", f.IDs("coalesce(available_at <= clock_timestamp(), true)"), []int64{3, 5, 9, waiting})
}

func TestRequeueReplacesIDsThatAreInUse(t *testing.T) {
	f := newFixture(t)
	f.Exec(`SELECT setval('outbox_id_seq', 50)`)
	// Id 20 is taken by a row from after a restart of the sequence; id 60 is above the sequence.
	f.Exec(`INSERT INTO outbox (id, routing_key, payload, ordering_key) VALUES (20, 'r', '1', 'k'), (21, 'r', '1', 'other')`)
	for _, id := range []int64{10, 20, 30} {
		f.DeadLetter(id, "nack", "ordering_key", "'k'")
	}
	f.DeadLetter(11, "nack", "ordering_key", "'other'")
	f.DeadLetter(12, "nack")
	f.DeadLetter(60, "nack")
	want := tabletest.One[[]string](f, `SELECT array_agg(message_id::text ORDER BY id) FROM outbox_dead_letter WHERE ordering_key = 'k'`)
	done := f.change(operator.Change{Do: operator.Requeue, Batch: 2})
	if done.Done != 6 || done.NewIDs != 4 || done.Left != 0 {
		t.Errorf("got %+v", done)
	}
	got := tabletest.One[[]string](f, `SELECT array_agg(message_id::text ORDER BY id) FROM outbox WHERE ordering_key = 'k' AND id < 20`)
	equal(t, "message ids", got, want)
	equal(t, "kept", f.IDs("id > 0 AND id <> 20"), []int64{11, 12, 21})
	equal(t, "replaced", f.IDs("id <= 0"), []int64{-3, -2, -1, 0})
}

func TestADeadLetterRejectedByTheOutboxStays(t *testing.T) {
	f := newFixture(t)
	f.Exec(`SELECT setval('outbox_id_seq', 50)`)
	f.DeadLetter(1, "nack")
	f.Exec(`ALTER TABLE outbox ADD CONSTRAINT of_the_owner CHECK (jsonb_typeof(headers) = 'object')`)
	f.DeadLetter(2, "invalid_headers", "headers", "'[]'")
	f.DeadLetter(3, "nack")
	done := f.change(operator.Change{Do: operator.Requeue})
	if done.Done != 2 || done.Left != 1 || done.Why == nil {
		t.Errorf("got %+v", done)
	}
	if tabletest.One[int64](f, `SELECT id FROM outbox_dead_letter`) != 2 {
		t.Error("another row was left")
	}
}

// A requeued message does not expire again.
func TestRequeueRemovesAPastExpiry(t *testing.T) {
	f := newFixture(t)
	f.Exec(`SELECT setval('outbox_id_seq', 50)`)
	f.DeadLetter(1, "expired", "expires_at", "now()")
	f.DeadLetter(2, "nack", "expires_at", "now() + interval '1 h'")
	f.change(operator.Change{Do: operator.Requeue})
	if got := tabletest.One[string](f, `SELECT string_agg(coalesce((expires_at > now())::text, 'none'), ', ' ORDER BY id) FROM outbox`); got != "none, true" {
		t.Error(got)
	}
}

// An application may have its own columns, even with the names of computed columns.
func TestEveryCommandWorksBesideColumnsOfAnyName(t *testing.T) {
	f := newFixture(t)
	f.AddColumns()
	f.Exec(`SELECT setval('outbox_id_seq', 50)`)
	f.DeadLetter(1, "nack", "n", "'kept'")
	o := f.operator()
	f.Exec(`INSERT INTO outbox (routing_key, payload, ordering_key, attempts, available_at) VALUES
		('r', '1', 'k', 0, NULL), ('r', '1', 'l', 3, now() + interval '1 h'), ('r', '1', NULL, 3, now() - interval '1 h')`)
	f.everyLook(o)
	if done := f.change(operator.Change{Do: operator.Requeue}); done.Done != 1 || tabletest.One[string](f, `SELECT n FROM outbox WHERE id = 1`) != "kept" {
		t.Errorf("sent back %+v", done)
	}
	f.DeadLetter(3, "nack")
	if done := f.change(operator.Change{Do: operator.Purge}); done.Done != 1 {
		t.Errorf("purged %+v", done)
	}
}

// everyLook calls what does not delete. Row 51 exists.
func (f *fixture) everyLook(o *operator.Tables) {
	f.Helper()
	ctx := f.Context()
	for what, err := range map[string]error{
		"stats":        second(o.Stats(ctx, operator.StatsOptions{Groups: operator.GroupOptions{Most: 10}, Exact: true})),
		"cheap stats":  second(o.Stats(ctx, operator.StatsOptions{Groups: operator.GroupOptions{Most: 10, Header: "task"}, Known: operator.Known{Block: true}})),
		"count":        second(o.Count(ctx, operator.Change{Do: operator.Purge, Filter: operator.Filter{}})),
		"dead letters": second(o.List(ctx, operator.Filter{State: operator.Dead}, operator.Page{Limit: 10})),
		"list":         second(o.List(ctx, operator.Filter{}, operator.Page{Limit: 10})),
		"keys":         second(o.Keys(ctx, false, operator.Known{}, operator.Page{Limit: 10})),
		"blocked keys": second(o.Keys(ctx, true, operator.Known{Block: true}, operator.Page{Limit: 10})),
		"find":         second(o.Find(ctx, name(f, "51"), operator.Known{}, true)),
		"dead groups":  second(o.Groups(ctx, operator.Dead, operator.GroupOptions{Most: 10})),
		"retry groups": second(o.Groups(ctx, operator.Retrying, operator.GroupOptions{Most: 10})),
		"offered":      second(o.Offer(ctx, "")),
		"offered dead": second(o.Offer(ctx, operator.Dead)),
		"newest":       second(o.List(ctx, operator.Filter{}, operator.Page{Limit: 10, Newest: true})),
		"published":    third(o.PublishedSince(ctx, time.Hour)),
		"retry":        second(o.Change(ctx, operator.Change{Do: operator.Retry, Batch: 10}, nil, quiet)),
	} {
		if err != nil {
			f.Errorf("%s: %v", what, err)
		}
	}
}

func second[A any](_ A, err error) error { return err }

func third[A, B any](_ A, _ B, err error) error { return err }

func TestDeadLetterFiltersSelect(t *testing.T) {
	f := newFixture(t)
	f.Exec(`SELECT setval('outbox_id_seq', 50)`)
	f.DeadLetter(1, "retries_exhausted", "last_error", "'unroutable: 312 NO_ROUTE'", "exchange", "'x'")
	f.DeadLetter(2, "too_large", "last_error", "'too_large: 17 MiB'", "ordering_key", "'k'")
	f.DeadLetter(3, "too_large", "dead_at", "now() - interval '2 days'")
	f.Exec(`UPDATE outbox_dead_letter SET routing_key = 's' WHERE id = 3`)
	message := tabletest.One[string](f, `SELECT message_id::text FROM outbox_dead_letter WHERE id = 2`)
	o := f.operator()
	const day = 24 * 60 * 60 * 1e9
	yesterday, never := time.Now().Add(-day), time.Time{}
	names := operator.Filter{}
	names.Add(name(t, "1"))
	names.Add(name(t, message))
	for _, test := range []struct {
		filter operator.Filter
		want   int64
	}{
		{operator.Filter{}, 3},
		{names, 2},
		{operator.Filter{RoutingKey: pattern("r")}, 2},
		{operator.Filter{RoutingKey: pattern("R")}, 0},
		{operator.Filter{Exchange: text("x")}, 1},
		{operator.Filter{Exchange: text("")}, 2},
		{operator.Filter{OrderingKey: text("k")}, 1},
		{operator.Filter{Reason: text("unroutable")}, 1},
		{operator.Filter{Reason: text("retries_exhausted")}, 1},
		{operator.Filter{Reason: text("too_large")}, 2},
		{operator.Filter{OlderThan: day}, 1},
		{operator.Filter{NewerThan: day}, 2},
		{operator.Filter{Until: &yesterday}, 1},
		{operator.Filter{After: &yesterday}, 2},
		{operator.Filter{Until: &never}, 0},
		{operator.Filter{After: &never}, 3},
		{operator.Filter{Reason: text("too_large"), NewerThan: day, RoutingKey: pattern("r")}, 1},
	} {
		if n := f.count(operator.Purge, test.filter); n != test.want {
			t.Errorf("%+v: %d, want %d", test.filter, n, test.want)
		}
		letters, err := o.List(t.Context(), test.filter.In(operator.Dead), operator.Page{Limit: 10})
		if err != nil || int64(len(letters.Rows)) != test.want {
			t.Errorf("%+v: %d listed, %v, want %d", test.filter, len(letters.Rows), err, test.want)
		}
	}
	no := errors.New("no")
	if deleted, err := o.Change(t.Context(), operator.Change{Do: operator.Purge, Filter: operator.Filter{OlderThan: day}, Batch: 1}, func(int64) error { return no }, quiet); deleted.Done != 0 || err != no {
		t.Errorf("purged %+v, %v", deleted, err)
	}
	agreed := func(total int64) error {
		if total != 1 {
			t.Errorf("asked for %d", total)
		}
		f.DeadLetter(90, "nack", "dead_at", `now() - interval '2 days'`) // dies while a person decides
		return nil
	}
	deleted, err := o.Change(t.Context(), operator.Change{Do: operator.Purge, Filter: operator.Filter{OlderThan: day}, Batch: 1}, agreed, quiet)
	if err != nil || deleted.Done != 1 || tabletest.One[int](f, `SELECT count(*) FROM outbox_dead_letter`) != 3 {
		t.Errorf("purged %+v, %v", deleted, err)
	}
}

func TestRedactedPayloadsStayInTheDatabase(t *testing.T) {
	f := newFixture(t)
	f.DeadLetter(1, "nack", "redacted_payload", `'"***"'`)
	f.DeadLetter(2, "nack")
	f.Exec(`INSERT INTO outbox (id, routing_key, payload_bytes) VALUES (3, 'r', '\x00ff')`)
	o := f.operator()
	find := func(id string, payload bool) operator.Message {
		t.Helper()
		found, err := o.Find(t.Context(), name(t, id), operator.Known{}, payload)
		if err != nil || len(found) != 1 {
			t.Fatalf("found %+v, %v", found, err)
		}
		return found[0]
	}
	if m := find("1", true); m.Payload != nil || string(m.Redacted) != `"***"` || m.PayloadSize != exactly(7) {
		t.Errorf("got %+v", m)
	}
	if shown, hidden := find("2", true), find("2", false); string(shown.Payload) != `{"n":1}` || hidden.Payload != nil {
		t.Errorf("got %+v, and without its payload %+v", shown, hidden)
	}
	if m := find("3", true); string(m.Payload) != "\x00\xff" || !m.Binary || m.State != operator.AtOnce {
		t.Errorf("got %+v", m)
	}
}
