package operator_test

import (
	"fmt"
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
	dead, err := o.DeadGroups(t.Context(), operator.GroupOptions{Most: 10})
	must(t, err)
	retries, err := o.RetryGroups(t.Context(), operator.GroupOptions{Most: 10})
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
		"3 exchange_missing x - 3", "2 unroutable  orders.lost 1", "1  y - 1", "1 too_large  - 1", "1 unroutable  orders.paid 1", "{8 exact}",
	})
	equal(t, "retries", said(retries), []string{"2 nack  - 1", "1 unroutable  s 1", "{3 exact}"})
	keys, err := o.DeadGroups(t.Context(), operator.GroupOptions{Most: 10, Keys: &dead.All[0].Cause})
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
		n, err := o.Count(t.Context(), operator.Change{Do: operator.Purge, Filter: filter(g)})
		if err != nil || n != g.N || g.First == nil || g.Last == nil {
			t.Errorf("%+v: the filter selects %d: %v", g, n, err)
		}
	}
	for _, g := range retries.All {
		would, err := o.Count(t.Context(), operator.Change{Do: operator.Retry, Filter: filter(g)})
		if err != nil || would != g.N {
			t.Errorf("%+v: the filter selects %d: %v", g, would, err)
		}
	}
	if few, err := o.DeadGroups(t.Context(), operator.GroupOptions{Most: 1}); err != nil || len(few.All) != 1 || few.N != exactly(8) {
		t.Errorf("%+v: %v", few, err)
	}
}

func TestGroupsOfManyRowsSayThatTheyCountSome(t *testing.T) {
	f := newFixture(t)
	f.Exec(`INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, failure_reason)
		SELECT i, now(), gen_random_uuid(), 6, 1, 'r', 'nack' FROM generate_series(1, $1::int) i`, operator.MostCounted+10)
	groups, err := f.operator().DeadGroups(t.Context(), operator.GroupOptions{Most: 10})
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
	f.Exec(`INSERT INTO outbox_published (id, created_at, published_at, message_id, attempts, schema_version, routing_key)
		SELECT i, now(), now(), gen_random_uuid(), 0, 1, 'p' || i FROM generate_series(1, 3) i`)
	o := f.operator()
	waiting, err := o.OfferWaiting(t.Context())
	if err != nil || fmt.Sprint(waiting) != "{[a b] [y] [nack]}" {
		t.Errorf("waiting: %v, %v", waiting, err)
	}
	dead, err := o.OfferDead(t.Context())
	if err != nil || fmt.Sprint(dead.Exchanges, dead.Reasons) != "[x] [retries_exhausted unroutable]" {
		t.Errorf("dead: %v, %v", dead, err)
	}
	published, err := o.OfferPublished(t.Context())
	if err != nil || fmt.Sprint(published) != "{[p1 p2 p3] [] []}" {
		t.Errorf("published: %v, %v", published, err)
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
		f.Exec(`INSERT INTO outbox_published (id, created_at, published_at, message_id, attempts, schema_version, routing_key)
			SELECT i, now(), now() - $3::interval, gen_random_uuid(), 0, 1, 'r' FROM generate_series($1::int, $2::int) i`, from, to, ago)
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
