package operator_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
)

// The filters of a group select as many rows as the group counts.
func TestGroupsCountWhatTheirFiltersSelect(t *testing.T) {
	f := newFixture(t)
	for i, death := range []struct{ key, exchange, reason, last string }{
		{"orders.lost", "NULL", "retries_exhausted", "'unroutable: NO_ROUTE'"},
		{"orders.lost", "''", "retries_exhausted", "'unroutable: another text'"},
		{"orders.paid", "''", "retries_exhausted", "'unroutable: another text'"},
		{"orders.lost", "NULL", "too_large", "NULL"},
		{"orders.paid", "'x'", "retries_exhausted", "'exchange_missing: 404'"},
		{"orders.sent", "'x'", "retries_exhausted", "'exchange_missing: 404'"},
		{"", "'x'", "retries_exhausted", "'exchange_missing: 404'"},
		{"", "'y'", "nack", "''"},
	} {
		f.DeadLetter(int64(i+1), death.reason, "last_error", death.last, "exchange", death.exchange)
		f.Exec(`UPDATE outbox_dead_letter SET routing_key = $2 WHERE id = $1`, i+1, death.key)
	}
	f.Exec(`INSERT INTO outbox (routing_key, payload, attempts, available_at, last_error) VALUES
		('r', '1', 1, now() + interval '1 h', 'nack: a'), ('r', '1', 2, now() - interval '1 h', 'nack: b'),
		('s', '1', 3, now() + interval '1 h', 'unroutable'), ('s', '1', 0, now() + interval '1 h', NULL), ('s', '1', 0, NULL, NULL)`)
	o := f.operator()
	dead, err := o.Groups(t.Context(), operator.Dead, operator.GroupOptions{Most: 10})
	must(t, err)
	retries, err := o.Groups(t.Context(), operator.Retrying, operator.GroupOptions{Most: 10})
	must(t, err)
	said := func(groups operator.Groups) (texts []string) {
		for _, g := range groups.All {
			key := "-"
			if g.RoutingKey != nil {
				key = *g.RoutingKey
			}
			texts = append(texts, fmt.Sprintf("%d %s %s %s %d", g.N, g.Reason, g.Exchange, key, g.Keys))
		}
		return append(texts, fmt.Sprint(groups.N))
	}
	equal(t, "dead letters", said(dead), []string{
		"3 exchange_missing x - 3", "2 unroutable (default) - 2", "1  y - 1", "1 too_large  - 1", "1 unroutable  - 1", "{8 exact}",
	})
	equal(t, "retries", said(retries), []string{"2 nack  - 1", "1 unroutable  - 1", "{3 exact}"})
	keys, err := o.Groups(t.Context(), operator.Dead, operator.GroupOptions{Most: 10, Keys: &dead.All[0].Cause})
	must(t, err)
	equal(t, "keys", said(keys), []string{
		"1 exchange_missing x  1", "1 exchange_missing x orders.paid 1", "1 exchange_missing x orders.sent 1", "{3 exact}",
	})
	filter := func(g operator.Group) operator.Filter {
		f := operator.Filter{Reason: &g.Reason, Exchange: &g.Exchange}
		if g.RoutingKey != nil {
			f.RoutingKey = pattern(operator.EscapePattern(*g.RoutingKey))
		}
		return f
	}
	for _, g := range dead.All {
		if n := f.count(operator.Purge, filter(g)); n != g.N || g.First == nil || g.Last == nil {
			t.Errorf("%+v: the filter selects %d", g, n)
		}
	}
	for _, g := range retries.All {
		if n := f.count(operator.Retry, filter(g)); n != g.N {
			t.Errorf("%+v: the filter selects %d", g, n)
		}
	}
	if few, err := o.Groups(t.Context(), operator.Dead, operator.GroupOptions{Most: 1}); err != nil || len(few.All) != 1 || few.N != exactly(8) || few.Causes != int64(len(dead.All)) {
		t.Errorf("%+v: %v", few, err)
	}
}

func TestGroupsOfManyRowsSayThatTheyCountSome(t *testing.T) {
	f := newFixture(t)
	f.Exec(`INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, failure_reason)
		SELECT i, now(), gen_random_uuid(), 6, 1, 'r', 'nack' FROM generate_series(1, $1::int) i`, operator.MostCounted+10)
	groups, err := f.operator().Groups(t.Context(), operator.Dead, operator.GroupOptions{Most: 10})
	if err != nil || groups.N.Precision != operator.AtLeast || groups.All[0].N < operator.MostCounted {
		t.Errorf("%+v: %v", groups, err)
	}
}

func TestOfferedValuesAreThoseThatExist(t *testing.T) {
	f := newFixture(t)
	f.history()
	f.DeadLetter(1, "retries_exhausted", "last_error", "'unroutable: NO_ROUTE'", "exchange", "'x'")
	f.Exec(`INSERT INTO outbox (routing_key, exchange, payload, last_error) VALUES
		('b', NULL, '1', NULL), ('a', '', '1', 'nack: full'), ('a', 'y', '1', NULL)`)
	f.published(`i, now(), gen_random_uuid(), 'p' || i`, `generate_series(1, 3) i`)
	for state, want := range map[operator.State]string{
		"": "{[a b] [(default) y] [nack]}", operator.Dead: "{[r] [x] [retries_exhausted unroutable]}", operator.Published: "{[p1 p2 p3] [] []}",
	} {
		if offered, err := f.operator().Offer(t.Context(), state); err != nil || fmt.Sprint(offered) != want {
			t.Errorf("%q: %v, %v, want %s", state, offered, err, want)
		}
	}
}

func TestPublishedSinceCountsTheNewestMessages(t *testing.T) {
	f := newFixture(t)
	o := f.operator()
	if count, kept, err := o.PublishedSince(t.Context(), time.Hour); kept || err != nil || count.Precision != operator.Unknown {
		t.Errorf("without a history: %+v, %v, %v", count, kept, err)
	}
	f.history()
	insert := func(from, to int, ago string) {
		f.published(`i, now() - $3::interval, gen_random_uuid(), 'r'`, `generate_series($1::int, $2::int) i`, from, to, ago)
	}
	insert(1, 20, "2 hours")
	insert(21, 25, "5 minutes")
	if count, kept, err := o.PublishedSince(t.Context(), time.Hour); !kept || err != nil || count != (operator.Count{N: 5, Precision: operator.Exact}) {
		t.Errorf("%+v, %v, %v", count, kept, err)
	}
	insert(100, 100+operator.MostCounted, "1 minute")
	if count, _, err := o.PublishedSince(t.Context(), time.Hour); err != nil || count != (operator.Count{N: operator.MostCounted, Precision: operator.AtLeast}) {
		t.Errorf("%+v, %v", count, err)
	}
}

// stats also checks that the states add up.
func (f *fixture) stats(exact bool) operator.QueueStats {
	f.Helper()
	return f.statsBlocking(exact, false)
}

func (f *fixture) statsBlocking(exact, block bool) operator.QueueStats {
	f.Helper()
	s, err := f.operator().Stats(f.Context(), operator.StatsOptions{Groups: operator.GroupOptions{Most: 3}, Exact: exact, Known: operator.Known{Block: block}})
	must(f, err)
	sum := int64(0)
	for _, count := range []operator.Count{s.States[operator.AtOnce], s.States[operator.Blocked], s.States[operator.Due], s.States[operator.Retrying], s.States[operator.Scheduled], s.States[operator.Locked], s.States[operator.Expired], s.States[operator.NewerVersion]} {
		sum += count.N
	}
	if sum != s.Depth.N && (s.States[operator.AtOnce].Precision != operator.AtLeast || sum > s.Depth.N) {
		f.Errorf("the states sum to %d of %d rows: %+v", sum, s.Depth.N, s)
	}
	return s
}

func exactly(n int64) operator.Count { return operator.Count{N: n, Precision: operator.Exact} }

func TestStatsOfAnEmptyQueue(t *testing.T) {
	f := newFixture(t)
	for _, exact := range []bool{false, true} {
		s := f.stats(exact)
		zero := exactly(0)
		if s.Depth != zero || s.States[operator.Due] != zero || s.States[operator.Retrying] != zero || s.DeadLetters != zero || s.States[operator.Expired] != zero || s.OldestPending != nil || s.OldestUnknown || len(s.FailedDead.All)+len(s.FailedRetries.All) != 0 {
			t.Errorf("got %+v", s)
		}
	}
}

func TestStatsCountsRowsByState(t *testing.T) {
	f := newFixture(t)
	f.Exec(`INSERT INTO outbox (routing_key, payload, ordering_key, attempts, available_at, possible_duplicate, last_error, created_at) VALUES
		('fresh', '1', NULL, 0, NULL, NULL, NULL, now() - interval '1 minute'),
		('due', '1', NULL, 0, now() - interval '1 second', NULL, NULL, now() - interval '1 hour'),
		('a', '1', 'k', 1, now() + interval '5 minutes', false, 'unroutable: b', now() - interval '2 hours'),
		('a', '1', 'k', 0, NULL, NULL, NULL, now() - interval '3 hours'),
		('a', '1', NULL, 2, now() + interval '6 minutes', true, 'unroutable: c', now()),
		('b', '1', NULL, 2, now() + interval '7 minutes', true, 'nack', now()),
		('later', '1', NULL, 0, now() + interval '1 day', NULL, NULL, now()),
		('behind', '1', 'blocked', 0, NULL, NULL, NULL, now())`)
	f.DeadLetter(1, "retries_exhausted", "last_error", "'unroutable: d'", "ordering_key", "'blocked'")
	f.DeadLetter(2, "too_large", "ordering_key", "'nothing behind'")
	f.Exec(`UPDATE outbox_dead_letter SET routing_key = 'a' WHERE id = 1`)
	f.Exec(`UPDATE outbox SET expires_at = now() + CASE routing_key WHEN 'later' THEN interval '1 h' ELSE '-1 s' END WHERE routing_key IN ('b', 'due', 'later')`)
	for _, exact := range []bool{false, true} {
		s := f.stats(exact)
		for what, counts := range map[string][2]operator.Count{
			"depth": {s.Depth, exactly(8)}, "due": {s.States[operator.Due], exactly(0)}, "retrying": {s.States[operator.Retrying], exactly(2)}, "waiting": {s.States[operator.AtOnce], exactly(2)}, "blocked": {s.States[operator.Blocked], exactly(1)},
			"scheduled": {s.States[operator.Scheduled], exactly(1)}, "expired": {s.States[operator.Expired], exactly(2)}, "timed keys": {s.TimedKeys, exactly(1)},
			"dead keys": {s.KeysBehindDead, exactly(1)}, "dead": {s.DeadLetters, exactly(2)},
		} {
			if counts[0] != counts[1] {
				t.Errorf("exact %t, %s: %v, want %v", exact, what, counts[0], counts[1])
			}
		}
		within := func(what string, got time.Duration, want time.Duration) {
			t.Helper()
			if got < want-time.Minute || got > want+time.Minute {
				t.Errorf("%s: %s, want about %s", what, got, want)
			}
		}
		within("oldest", s.At.Sub(*s.OldestPending), 3*time.Hour)
		within("oldest that waits for nothing", s.At.Sub(*s.OldestAtOnce), time.Minute)
		within("next retry", s.NextRetry.Sub(s.At), 5*time.Minute)
		within("next scheduled", s.NextScheduled.Sub(s.At), 24*time.Hour)
		dead, retries := s.FailedDead, s.FailedRetries
		if len(dead.All) != 2 || dead.N != exactly(2) || len(retries.All) != 2 || retries.N != exactly(3) || retries.All[0].N != 2 || *retries.All[0].OneKey != "a" ||
			retries.All[0].Example != "unroutable: c" {
			t.Errorf("failed: %+v, %+v", dead, retries)
		}
	}
}

// Celery tasks of a queue have the same routing key.
func TestStatsGroupsFailuresByAHeader(t *testing.T) {
	f := newFixture(t)
	f.Exec(`INSERT INTO outbox (routing_key, payload, headers, attempts, available_at, last_error)
		SELECT 'celery', '1', headers, 1, now() + interval '1 hour', 'unroutable' FROM (VALUES
			('{"task": "orders.send"}'::jsonb), ('{"task": "orders.send", "id": 1}'), ('{"task": "orders.send"}'), ('{"task": 17}'), ('{"task": 17}'),
			('{"task": null}'), ('{"task": {"a": 1}}'), ('["task"]'), (NULL), ('{"other": "task"}'),
			(jsonb_build_object('task', repeat('ü', 1000) || E'\n')), (jsonb_build_object('task', 'a', 'z', (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 4000) i)))
		) v(headers)`)
	f.DeadLetter(1, "too_large", "headers", `'{"task": "orders.send"}'`)
	s, err := f.operator().Stats(t.Context(), operator.StatsOptions{Groups: operator.GroupOptions{Most: 10, Header: "task"}})
	must(t, err)
	got := make(map[string]int64)
	for _, one := range s.FailedRetries.All {
		got[*one.OneKey+" "+one.Reason+" "+*one.Header] += one.N
	}
	for _, one := range s.FailedDead.All {
		got[*one.OneKey+" "+one.Reason+" "+*one.Header] += 1000 * one.N
	}
	want := map[string]int64{
		"celery unroutable orders.send": 3, "celery unroutable 17": 2, "celery unroutable " + strings.Repeat("ü", 255): 1,
		"celery unroutable ":      6, // also the row with large headers
		"r too_large orders.send": 1000,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if retries := f.stats(false).FailedRetries; len(retries.All) != 1 || retries.All[0].N != 12 || retries.All[0].Header != nil {
		t.Errorf("without a header: %+v", retries)
	}
}

// Rows that cannot leave because of another row, of their version, or of a lock have a state, too.
func TestEachRowCountsInOneState(t *testing.T) {
	f := newFixture(t)
	const columns = `INSERT INTO outbox (routing_key, payload, ordering_key, attempts, available_at, possible_duplicate, schema_version, expires_at) `
	f.Exec(columns + `
		SELECT 'rejected', '1', 'key ' || i, 1, now() + interval '1 hour', NULL, 1, NULL::timestamptz FROM generate_series(1, 11) i`)
	f.Exec(columns + `
		SELECT 'behind', '1', 'key ' || 1 + i % 11, 0, NULL, NULL, 1, NULL::timestamptz FROM generate_series(1, 700) i`)
	f.Exec(columns + `VALUES
		('behind, requeued', '1', 'key 1', 0, now() - interval '1 second', NULL, 1, NULL),
		('behind, expired', '1', 'key 1', 0, NULL, NULL, 1, now() - interval '1 second'),
		('behind, newer', '1', 'key 1', 0, NULL, NULL, 2, NULL),
		('behind, rejected', '1', 'key 1', 2, now() + interval '1 hour', true, 1, NULL),
		('head, newer', '1', 'newer', 0, NULL, NULL, 2, NULL),
		('behind a newer one', '1', 'newer', 0, NULL, NULL, 1, NULL),
		('dead key', '1', 'dead', 0, NULL, NULL, 1, NULL),
		('free', '1', NULL, 0, NULL, NULL, 1, NULL),
		('locked', '1', NULL, 0, NULL, NULL, 1, NULL),
		('scheduled', '1', 'later', 0, now() + interval '1 hour', true, 1, NULL)`)
	f.DeadLetter(-1, "nack", "ordering_key", "'dead'")
	f.lock(`SELECT FROM outbox WHERE routing_key = 'locked' FOR UPDATE`)
	for _, exact := range []bool{false, true} {
		for _, block := range []bool{false, true} {
			waiting, blocked := int64(2), int64(702)
			if block {
				waiting, blocked = 1, 703
			}
			s := f.statsBlocking(exact, block)
			for what, counts := range map[string][2]operator.Count{
				"depth": {s.Depth, exactly(721)}, "waiting": {s.States[operator.AtOnce], exactly(waiting)}, "blocked": {s.States[operator.Blocked], exactly(blocked)}, "due": {s.States[operator.Due], exactly(0)},
				"retrying": {s.States[operator.Retrying], exactly(12)}, "scheduled": {s.States[operator.Scheduled], exactly(1)},
				"locked": {s.States[operator.Locked], exactly(1)}, "expired": {s.States[operator.Expired], exactly(1)}, "newer": {s.States[operator.NewerVersion], exactly(2)}, "timed keys": {s.TimedKeys, exactly(12)},
			} {
				if counts[0] != counts[1] {
					t.Errorf("exact %t, block %t, %s: %v, want %v", exact, block, what, counts[0], counts[1])
				}
			}
		}
	}
}

func TestStatsSaysHowPreciseACountIs(t *testing.T) {
	f := newFixture(t)
	const rows = operator.MostCounted + 2000
	f.Exec(`SET track_counts = off`) // the server has not counted them yet
	f.Plain(rows)
	s := f.stats(false)
	if s.Depth != (operator.Count{N: rows, Precision: operator.Estimate}) {
		t.Errorf("without statistics: %+v", s.Depth)
	}
	f.Exec(`ANALYZE outbox`)
	if s := f.stats(false); s.Depth.Precision != operator.Estimate || s.Depth.N < rows*9/10 || s.Depth.N > rows {
		t.Errorf("analyzed: %+v", s.Depth)
	}
	if s := f.stats(true); s.Depth != exactly(rows) {
		t.Errorf("exact: %+v", s.Depth)
	}
	f.Exec(`UPDATE outbox SET available_at = now() + interval '1 hour', attempts = 1, last_error = 'nack'`)
	s = f.stats(false)
	if s.States[operator.Retrying].Precision != operator.Estimate || s.States[operator.Retrying].N < rows*8/10 || s.States[operator.AtOnce].N > rows*2/10 || s.FailedRetries.N != (operator.Count{N: operator.MostCounted + 1, Precision: operator.AtLeast}) {
		t.Errorf("retrying: %+v, waiting %+v, %+v", s.States[operator.Retrying], s.States[operator.AtOnce], s.FailedRetries.N)
	}
	if s := f.stats(true); s.States[operator.Retrying] != exactly(rows) || s.FailedRetries.N != exactly(rows) {
		t.Errorf("retrying: %+v, failed %+v", s.States[operator.Retrying], s.FailedRetries)
	}
}

// Many rows that wait behind others or for tomorrow, and the oldest of which are of another kind, are estimated.
func TestStatesOfManyRowsAreEstimated(t *testing.T) {
	f := newFixture(t)
	f.Plain(operator.MostCounted + 1)
	f.Exec(`INSERT INTO outbox (routing_key, payload, available_at) SELECT 'r', '1', now() + interval '1 day' FROM generate_series(1, 30000)`)
	f.Exec(`INSERT INTO outbox (routing_key, payload, ordering_key) SELECT 'r', '1', 'k' FROM generate_series(1, 20000)`)
	f.Exec(`INSERT INTO outbox (routing_key, payload, expires_at) VALUES ('r', '1', now())`)
	f.Exec(`ANALYZE outbox`)
	hurried, err := operator.HurriedStats(t.Context(), f.operator())
	must(t, err)
	for _, s := range []operator.QueueStats{f.stats(false), hurried} {
		for state, want := range map[operator.State]int64{operator.AtOnce: 10_001, operator.Scheduled: 30_000, operator.Blocked: 19_999} {
			got := s.States[state]
			if got.Precision != operator.Estimate || got.N < want/2 || got.N > want*2 {
				t.Errorf("%s: %+v, want about %d: %+v", state, got, want, s)
			}
		}
		// Too few rows of a sample are none or many.
		if got := s.States[operator.Expired]; got.N > 0 || got.Precision != operator.AtLeast {
			t.Errorf("expired: %+v", got)
		}
	}
}

// A row waits from its time on: a message that leaves at its time is not late.
func TestTheOldestRowWaitsFromItsTimeOn(t *testing.T) {
	f := newFixture(t)
	f.Exec(`INSERT INTO outbox (routing_key, payload, created_at, available_at) VALUES ('r', '1', now() - interval '1 hour', now() - interval '1 second')`)
	if s := f.stats(false); s.At.Sub(*s.OldestPending) > 30*time.Minute {
		t.Errorf("waits since %s, at %s", s.OldestPending, s.At)
	}
}
