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
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func idsOfPages[T any](t testing.TB, limit int, read func(operator.Page) (operator.Listing[T], error), id func(T) int64) (ids []int64) {
	t.Helper()
	ids = []int64{}
	for after := ""; ; {
		list, err := read(operator.Page{After: after, Limit: limit})
		must(t, err)
		if len(list.Rows) > limit {
			t.Fatalf("%d rows in a page of %d", len(list.Rows), limit)
		}
		for _, row := range list.Rows {
			ids = append(ids, id(row))
		}
		if list.Next == after && after != "" {
			t.Fatalf("page %v has itself as the next one", ids)
		}
		if after = list.Next; after == "" {
			return ids
		}
	}
}

func (f *fixture) listed(filter operator.Filter, limit int) []int64 {
	f.Helper()
	o := f.operator()
	return idsOfPages(f, limit, func(p operator.Page) (operator.Listing[operator.Message], error) {
		return o.List(f.Context(), filter, p)
	},
		func(w operator.Message) int64 { return w.ID })
}

// A requeued dead letter can have it.
func TestPagesContinueAfterTheIDZero(t *testing.T) {
	f := newFixture(t)
	f.Exec(`INSERT INTO outbox (id, routing_key, payload, ordering_key) SELECT i, 'k', '1', 'A' FROM generate_series(-1, 2) i`)
	key := "A"
	for _, filter := range []operator.Filter{{}, {OrderingKey: &key}} {
		if got := f.listed(filter, 2); fmt.Sprint(got) != "[-1 0 1 2]" {
			t.Errorf("%+v: listed %v", filter, got)
		}
	}
}

func TestListSelectsByStateAndFilters(t *testing.T) {
	f := newFixture(t)
	const columns = "(routing_key, payload, ordering_key, available_at, attempts, possible_duplicate, schema_version, expires_at, exchange, created_at, last_error) VALUES "
	row := func(values string) int64 { return f.Insert(columns + "(" + values + ")") }
	// The ids of the rows are 1, 2, …
	row("'a', '1', NULL, NULL, 0, NULL, 1, NULL, 'x', now() - interval '2 hours', NULL")
	row("'a', '1', 'k', now() - interval '1 second', 1, NULL, 1, NULL, NULL, now(), 'nack: full'")
	row("'b', '1', 'k', now() + interval '2 hours', 2, NULL, 1, NULL, NULL, now(), 'unroutable'")
	row("'b', '1', NULL, now() + interval '1 hour', 2, NULL, 1, NULL, NULL, now(), NULL")
	row("'b', '1', NULL, 'infinity', 0, NULL, 1, NULL, NULL, now(), NULL")
	row("'b', '1', NULL, now() + interval '1 hour', 0, NULL, 1, now() + interval '1 day', NULL, now(), NULL")
	row("'c', '1', NULL, now() + interval '10 hours', 0, true, 1, NULL, NULL, now(), NULL")
	row("'c', '1', NULL, NULL, 0, NULL, 1, now() - interval '1 second', NULL, now(), NULL")
	row("'c', '1', NULL, NULL, 0, NULL, 2, NULL, NULL, now(), NULL")
	locked := row("'c', '1', NULL, NULL, 0, NULL, 1, NULL, NULL, now(), NULL")
	f.lock(fmt.Sprintf(`SELECT FROM outbox WHERE id = %d FOR UPDATE`, locked))
	for _, test := range []struct {
		filter operator.Filter
		want   string
	}{
		{operator.Filter{}, "[1 2 3 4 5 6 7 8 9 10]"},
		{operator.Filter{State: operator.AtOnce}, "[1]"},
		{operator.Filter{State: operator.Due}, "[2]"},
		{operator.Filter{State: operator.Retrying}, "[4 3]"},
		{operator.Filter{State: operator.Scheduled}, "[6 7 5]"},
		{operator.Filter{State: operator.Expired}, "[8]"},
		{operator.Filter{State: operator.NewerVersion}, "[9]"},
		{operator.Filter{State: operator.Locked}, "[10]"},
		{operator.Filter{OrderingKey: text("k")}, "[2 3]"},
		{operator.Filter{OrderingKey: text("k"), State: operator.Retrying}, "[3]"},
		{operator.Filter{RoutingKey: pattern("a")}, "[1 2]"},
		{operator.Filter{RoutingKey: pattern("none")}, "[]"},
		{operator.Filter{RoutingKey: pattern("#")}, "[1 2 3 4 5 6 7 8 9 10]"},
		{operator.Filter{RoutingKey: pattern("a.#")}, "[1 2]"},
		{operator.Filter{RoutingKey: pattern("a.*")}, "[]"},
		{operator.Filter{Exchange: text("x")}, "[1]"},
		{operator.Filter{OlderThan: time.Hour}, "[1]"},
		{operator.Filter{Reason: text("nack")}, "[2]"},
	} {
		for _, limit := range []int{1, 2, 3, 100} {
			if got := fmt.Sprint(f.listed(test.filter, limit)); got != test.want {
				t.Errorf("%+v by %d: %s, want %s", test.filter, limit, got, test.want)
			}
		}
	}
}

func TestHeadersFilterEveryList(t *testing.T) {
	f := newFixture(t)
	for i, headers := range []string{
		`{"task": "orders.send", "tenant": 7}`, `{"task": "orders.tasks.send"}`, `{"task": "orders_send"}`, `{"task": ""}`, `{"task": null}`,
		`{"task": ["orders.send"]}`, `[]`, `{}`, `{"task": true}`, `{"task": "50% a\\b\nc"}`, `{"Task": "orders.send", "tenant": 7}`,
	} {
		f.Exec(`INSERT INTO outbox (id, routing_key, payload, headers) VALUES ($1, 'celery', '1', $2)`, i+1, headers)
		f.DeadLetter(int64(i+1), "nack", "headers", "'"+headers+"'")
	}
	f.Exec(`INSERT INTO outbox (id, routing_key, payload) VALUES (12, 'celery', '1')`)
	f.DeadLetter(12, "nack")
	for filter, want := range map[string]string{
		"task=orders.send": "1", "task=orders.*": "1", "task=orders.#": "1 2", "task=*.send": "1", "task=#.send": "1 2",
		"task=o*s.#.send": "1 2", "task=o*s*send": "3", "task=orders_send": "3", "task=*": "3 9 10", "task=#": "1 2 3 4 9 10",
		"task=": "4 5 6 7 8 11 12", "task=tr*": "9", "tenant=7": "1 11", "task=orders.#,tenant=7": "1",
		"Task=orders.*": "11", "other=#": "", "tenant=*": "1 11", `task=50% a\\b*`: "10", "task=%": "", "task=*%*": "10",
		`task=*\\*`: "10", "task=5%": "", "task=orders?send": "", "task=ORDERS.*": "", `task=50%\,`: "",
	} {
		headers, err := operator.ParseHeaders(filter)
		must(t, err)
		picked := operator.Filter{Headers: headers}
		if got := strings.Trim(fmt.Sprint(f.listed(picked, 4)), "[]"); got != want {
			t.Errorf("list %s: %s, want %s", filter, got, want)
		}
		if n, all := f.count(operator.Purge, picked), len(strings.Fields(want)); int(n) != all {
			t.Errorf("dead letters with %s: %d, want %d", filter, n, all)
		}
	}
	for _, filter := range []string{"", "task", "=a", "task=a,b", "argsrepr=*", "task=a,kwargsrepr=x", "task=a,", `task=orders\.send`} {
		if got, err := operator.ParseHeaders(filter); err == nil {
			t.Errorf("%q: %v", filter, got)
		}
	}
	if (operator.Filter{Headers: []operator.HeaderFilter{{Name: "task"}}}).Everything() {
		t.Error("a header selects every row")
	}
}

// The list has the rows that Stats counts, key by key.
func TestBlockedRowsAreThoseThatStatsCounts(t *testing.T) {
	f := newFixture(t)
	f.Exec(`INSERT INTO outbox (id, routing_key, payload, ordering_key, available_at, attempts) VALUES
		(1, 'r', '1', 'retries', now() + interval '1 hour', 1), (2, 'r', '1', 'retries', NULL, 0), (3, 's', '1', 'retries', now(), 0),
		(4, 'r', '1', 'retries', now() + interval '1 hour', 0), (5, 'r', '1', NULL, NULL, 0), (6, 'r', '1', 'is free', NULL, 0),
		(7, 'r', '1', 'dead', NULL, 0), (8, 'r', '1', 'dead', NULL, 0), (9, 'r', '1', 'dead', now() + interval '1 hour', 1),
		(10, 'r', '1', 'a', NULL, 0), (11, 'r', '1', 'a', NULL, 0), (12, 'r', '1', 'locked', NULL, 0), (13, 'r', '1', 'locked', NULL, 0)`)
	f.Exec(`UPDATE outbox SET expires_at = now() WHERE id = 13`)
	f.DeadLetter(100, "nack", "ordering_key", "'dead'")
	f.lock(`SELECT 1 FROM outbox WHERE id = 11 FOR UPDATE`)
	o := f.operator()
	for _, test := range []struct {
		filter operator.Filter
		block  bool
		want   string
	}{
		{operator.Filter{}, false, "[8 2 3]"},
		{operator.Filter{}, true, "[7 8 2 3]"},
		{operator.Filter{OrderingKey: text("retries")}, true, "[2 3]"},
		{operator.Filter{RoutingKey: pattern("s")}, true, "[3]"},
		{operator.Filter{OlderThan: time.Hour}, true, "[]"},
	} {
		test.filter.State, test.filter.Block = operator.Blocked, test.block
		for _, limit := range []int{1, 2, 3, 100} {
			got := idsOfPages(t, limit, func(p operator.Page) (operator.Listing[operator.Message], error) {
				return o.List(t.Context(), test.filter, p)
			}, func(w operator.Message) int64 {
				if w.State != operator.Blocked {
					t.Errorf("row %d is %s", w.ID, w.State)
				}
				return w.ID
			})
			if fmt.Sprint(got) != test.want {
				t.Errorf("%+v, %t, by %d: %v, want %s", test.filter, test.block, limit, got, test.want)
			}
		}
	}
	for block, want := range map[bool]int64{false: 3, true: 4} {
		s, err := o.Stats(t.Context(), operator.StatsOptions{Known: operator.Known{Block: block}})
		if err != nil || s.States[operator.Blocked] != exactly(want) {
			t.Errorf("%t: %+v, %v", block, s.States[operator.Blocked], err)
		}
	}
}

// Many rows may have the same time, and a page may end among them.
func TestPagesContainEveryRowOfEqualTime(t *testing.T) {
	f := newFixture(t)
	f.Exec(`INSERT INTO outbox (routing_key, payload, available_at) SELECT 'r', '1', '2100-01-01' FROM generate_series(1, 25)`)
	f.Exec(`INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, failure_reason, dead_at)
		SELECT i, now(), gen_random_uuid(), 1, 1, 'r', 'nack', 'infinity' FROM generate_series(1, 25) i`)
	if got := f.listed(operator.Filter{State: operator.Scheduled}, 4); len(got) != 25 {
		t.Errorf("%d rows: %v", len(got), got)
	}
	dead := f.listed(operator.Filter{State: operator.Dead}, 4)
	if len(dead) != 25 || dead[0] != 25 || dead[24] != 1 {
		t.Errorf("%d dead letters: %v", len(dead), dead)
	}
	f.history()
	f.published(`i % 13, '2026-01-01'::timestamptz + i * interval '1 s', gen_random_uuid(), 'r'`, `generate_series(1, 25) i`)
	published := f.listed(operator.Filter{State: operator.Published}, 3)
	if len(published) != 25 || published[0] != 12 || published[1] != 12 || published[24] != 0 {
		t.Errorf("%d published messages: %v", len(published), published)
	}
}

func TestCursorsOfOtherListsAreRejected(t *testing.T) {
	f := newFixture(t)
	f.Plain(2)
	o := f.operator()
	list, err := o.List(t.Context(), operator.Filter{}, operator.Page{Limit: 1})
	if err != nil || list.Next == "" {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, after := range []string{list.Next, "17", "%%"} {
		_, err := o.List(t.Context(), operator.Filter{State: operator.Due}, operator.Page{After: after, Limit: 1})
		if !errors.Is(err, operator.ErrCursor) {
			t.Errorf("%q: %v", after, err)
		}
	}
}

func TestKeysShowWhyTheyWait(t *testing.T) {
	f := newFixture(t)
	f.Exec(`INSERT INTO outbox (routing_key, payload, ordering_key, available_at, attempts) VALUES
		('r', '1', 'a', NULL, 0), ('r', '1', 'a', '2100-01-01', 0), ('r', '1', 'b', '2100-01-01', 1), ('r', '1', 'b', NULL, 0),
		('r', '1', 'c', NULL, 0), ('r', '1', 'd', '2090-01-01', 0), ('r', '1', NULL, '2080-01-01', 0)`)
	f.DeadLetter(1000, "nack", "ordering_key", "'c'")
	f.DeadLetter(1001, "nack", "ordering_key", "'b'")
	f.DeadLetter(1002, "nack", "ordering_key", "'no rows'")
	o := f.operator()
	keys := func(limit int, read func(context.Context, operator.Page) (operator.Listing[operator.Key], error)) (names string) {
		idsOfPages(t, limit, func(p operator.Page) (operator.Listing[operator.Key], error) { return read(t.Context(), p) }, func(k operator.Key) int64 {
			names += fmt.Sprintf("%s:%d/%d/%s/%t ", k.Key, k.First.ID, k.Behind.N, k.First.State, k.Dead != nil)
			return 0
		})
		return names
	}
	list := func(blocked, block bool) func(context.Context, operator.Page) (operator.Listing[operator.Key], error) {
		return func(ctx context.Context, p operator.Page) (operator.Listing[operator.Key], error) {
			return o.Keys(ctx, blocked, operator.Known{Block: block}, p)
		}
	}
	for _, limit := range []int{1, 2, 3, 4, 100} {
		for _, test := range []struct {
			read func(context.Context, operator.Page) (operator.Listing[operator.Key], error)
			want string
		}{
			{list(false, false), "a:1/1/waiting/false b:3/1/retrying/true c:5/0/waiting/true d:6/0/scheduled/false "},
			{list(true, false), "d:6/0/scheduled/false b:3/1/retrying/true "},
			{list(true, true), "d:6/0/scheduled/false b:3/1/retrying/true c:5/0/blocked/true "},
		} {
			if got := keys(limit, test.read); got != test.want {
				t.Errorf("by %d: %s, want %s", limit, got, test.want)
			}
		}
	}
}

// A page of a million rows, keys or dead letters costs as much as one of a few.
func TestAPageReadsABoundedNumberOfRows(t *testing.T) {
	rows := 3 * operator.MostLooked
	if !testing.Short() {
		rows = 1_000_000
	}
	f := newFixture(t)
	f.Exec(`ALTER TABLE outbox SET (autovacuum_enabled = false)`) // autovacuum would hide rows from the count below
	// Ids with and without a key and a time; most times are equal.
	f.Exec(`INSERT INTO outbox (routing_key, payload, ordering_key, available_at, attempts) SELECT 'r', '1',
		CASE WHEN i % 2 = 0 THEN 'key ' || i WHEN i % 3 = 0 THEN 'hot' END,
		CASE WHEN i % 4 = 0 THEN '2100-01-01'::timestamptz WHEN i % 4 = 1 THEN now() - interval '1 second' END, i % 2 FROM generate_series(1, $1::int) i`, rows)
	f.Exec(`INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, ordering_key, failure_reason, dead_at)
		SELECT i, now(), gen_random_uuid(), 1, 1, 'r', 'key ' || i, 'nack', '2026-01-01' FROM generate_series(1, $1::int) i`, rows)
	conn := tabletest.Connect(t, f.URL)
	o, err := operator.New(t.Context(), conn, tabletest.Name())
	must(t, err)
	f.history()
	f.published(`i, now() - i % 5 * interval '1 day', gen_random_uuid(), 'r'`, `generate_series(1, $1::int) i`, rows)
	none := pattern("none has this")
	counted := func() int {
		return tabletest.One[int](&tabletest.Tables{TB: t, Conn: conn}, `SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables`)
	}
	list := func(filter operator.Filter) func(string) (string, error) {
		return func(after string) (string, error) {
			filter.Block = true
			l, err := o.List(t.Context(), filter, operator.Page{After: after, Limit: 50})
			return l.Next, err
		}
	}
	for what, read := range map[string]func(after string) (next string, err error){
		"list": list(operator.Filter{}), "routing key": list(operator.Filter{RoutingKey: none}),
		"pattern": list(operator.Filter{RoutingKey: pattern("none.#.has.*")}), "due": list(operator.Filter{State: operator.Due}),
		"retrying": list(operator.Filter{State: operator.Retrying}), "scheduled": list(operator.Filter{State: operator.Scheduled}),
		"scheduled, none": list(operator.Filter{State: operator.Scheduled, RoutingKey: none}), "locked": list(operator.Filter{State: operator.Locked}),
		"newer version": list(operator.Filter{State: operator.NewerVersion}), "blocked": list(operator.Filter{State: operator.Blocked}),
		"blocked, none": list(operator.Filter{State: operator.Blocked, RoutingKey: none}), "hot key": list(operator.Filter{OrderingKey: text("hot"), RoutingKey: none}),
		"keys": func(after string) (string, error) {
			l, err := o.Keys(t.Context(), false, operator.Known{}, operator.Page{After: after, Limit: 50})
			return l.Next, err
		},
		"blocked keys": func(after string) (string, error) {
			l, err := o.Keys(t.Context(), true, operator.Known{Block: true}, operator.Page{After: after, Limit: 50})
			return l.Next, err
		},
		"published": list(operator.Filter{State: operator.Published}), "published, none": list(operator.Filter{State: operator.Published, RoutingKey: none}),
		"dead letters": list(operator.Filter{State: operator.Dead}), "dead letters, none": list(operator.Filter{State: operator.Dead, RoutingKey: none}),
	} {
		after := ""
		for page := range 3 {
			tx, err := conn.Begin(t.Context()) // the counters are those of a transaction
			must(t, err)
			before := counted()
			after, err = read(after)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			n := counted() - before
			must(t, tx.Rollback(t.Context()))
			t.Logf("%s, page %d: %d rows", what, page+1, n)
			most := operator.MostLooked + 500
			if few := []string{"list", "due", "scheduled", "keys", "blocked keys", "dead letters", "published"}; slices.Contains(few, what) {
				most = 50*(operator.MostBehind+10) + 500 // it counts this many rows of each key
				if !strings.Contains(what, "keys") {
					most = 200 // due looks up the oldest row of each key
				}
			}
			if n > most {
				t.Errorf("%s, page %d: %d rows were read", what, page+1, n)
			}
			if after == "" {
				break
			}
		}
	}
}
