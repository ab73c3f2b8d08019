package operator_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// largeValues are values of more than 1 MB, by column. Some need few bytes on disk.
var largeValues = []struct{ column, value string }{
	{"payload", `to_json(repeat('x', 1200000))`},
	{"payload", `(SELECT to_json(string_agg(md5(i::text), '')) FROM generate_series(1, 40000) i)`},
	{"payload_bytes", `(SELECT decode(string_agg(md5(i::text), ''), 'hex') FROM generate_series(1, 80000) i)`},
	{"headers", `jsonb_build_object('a', repeat('x', 1200000))`},
	{"headers", `(SELECT jsonb_build_object('a', jsonb_agg('{}'::jsonb)) FROM generate_series(1, 400000))`},
	{"headers", `(SELECT jsonb_build_object('a', jsonb_agg('1e100000'::jsonb)) FROM generate_series(1, 12))`}, // 600 bytes on disk
	{"properties", `(SELECT jsonb_object_agg(md5(i::text), i) FROM generate_series(1, 40000) i)`},
	{"redacted_payload", `to_json(repeat('x', 1200000))`},
	{"last_error", `'nack: ' || repeat('ö', 600000)`},
	{"last_error", `(SELECT 'nack: ' || string_agg(md5(i::text), '') FROM generate_series(1, 40000) i)`},
	{"routing_key", `repeat('k', 1200000)`},
	{"exchange", `repeat('e', 1200000)`},
}

// withLargeRows adds a row for each large value, and a small row before and after them, to all tables. It returns the ids.
func withLargeRows(f *fixture) (ids []int64) {
	f.Helper()
	columns := func(large string) string {
		all := []string{"routing_key", "payload", "ordering_key", "last_error", "attempts"}
		if large == "payload_bytes" {
			all[1] = "schema_version"
		}
		return strings.Join(all, ", ")
	}
	insert := func(column, value string) {
		names := columns(column)
		values := map[string]string{"routing_key": "'r'", "payload": "'1'", "ordering_key": "'k'", "last_error": "'nack: full'", "attempts": "1", "schema_version": "1"}
		if _, known := values[column]; !known {
			names += ", " + column
		}
		values[column] = value
		var all []string
		for name := range strings.SplitSeq(names, ", ") {
			all = append(all, values[name])
		}
		ids = append(ids, f.Insert(fmt.Sprintf("(%s, available_at) VALUES (%s, now() + interval '1 hour')", names, strings.Join(all, ", "))))
	}
	insert("routing_key", "'first'")
	for _, large := range largeValues {
		insert(large.column, large.value)
	}
	insert("routing_key", "'last'")
	const kept = `id, message_id, exchange, routing_key, ordering_key, payload, payload_bytes, headers, properties, redacted_payload, schema_version, created_at, attempts, last_error`
	f.Exec(`INSERT INTO outbox_dead_letter (` + kept + `, failure_reason) SELECT ` + kept + `, CASE WHEN exchange IS NULL THEN 'nack' ELSE repeat('n', 1200000) END FROM outbox`)
	f.Exec(`CREATE TABLE outbox_published (LIKE outbox, published_at timestamptz NOT NULL DEFAULT now())`)
	f.Exec(`INSERT INTO outbox_published (` + kept + `) SELECT ` + kept + ` FROM outbox`)
	return ids
}

// shownBytes is the memory of the values of a view.
func shownBytes(m operator.StoredMessage) int {
	n := len(m.RoutingKey) + len(m.Headers) + len(m.Properties) + len(m.Redacted) + len(m.Payload)
	for _, s := range []*string{m.Exchange, m.OrderingKey, m.LastError} {
		if s != nil {
			n += len(*s)
		}
	}
	return n
}

// A value that is too large is shown as its size, in each view, and the rows beside it are shown.
func TestALargeRowHidesNoOther(t *testing.T) {
	f := newFixture(t)
	ids := withLargeRows(f)
	o := f.operator()
	check := func(view string, err error, rows []operator.StoredMessage, want int) {
		t.Helper()
		if err != nil || len(rows) != want {
			t.Fatalf("%s: %d rows, want %d; %v", view, len(rows), want, err)
		}
		for _, m := range rows {
			if n := shownBytes(m); n > 12<<10 {
				t.Errorf("%s, row %d: %d bytes are shown", view, m.ID, n)
			}
		}
	}
	page := operator.Page{Limit: 100}
	for _, filter := range []operator.Filter{
		{},
		{State: operator.Retrying},
		{Reason: text("nack")},
		{OrderingKey: text("k")},
		{State: operator.Dead},
		{State: operator.Dead, Reason: text("nack")},
		{State: operator.Dead, IDs: ids},
		{State: operator.Dead, OrderingKey: text("k")},
		{State: operator.Published},
		{State: operator.Published, IDs: ids},
	} {
		for _, page.Payload = range []bool{false, true} {
			list, err := o.List(t.Context(), filter, page)
			check(fmt.Sprintf("list %+v, payload %t", filter, page.Payload), err, stored(list.Rows, func(m operator.Message) operator.StoredMessage { return m.StoredMessage }), len(ids))
			for _, m := range list.Rows {
				if len(m.Reason) > 5000 {
					t.Errorf("a reason of %d bytes", len(m.Reason))
				}
			}
		}
	}
	keys, err := o.Keys(t.Context(), page)
	check("keys", err, stored(keys.Rows, func(k operator.Key) operator.StoredMessage { return k.First.StoredMessage }), 1)

	for i, id := range ids {
		named := name(t, fmt.Sprint(id))
		found, err := o.Find(t.Context(), named, true)
		check(fmt.Sprintf("find %d", id), err, stored(found, func(m operator.Message) operator.StoredMessage { return m.StoredMessage }), 3)
		if i == 0 || i > len(largeValues) {
			continue
		}
		large := largeValues[i-1]
		isText := large.column == "last_error" || large.column == "routing_key" || large.column == "exchange"
		if !isText && !isNamed(found[0].Large, large.column) {
			t.Errorf("%s of row %d is not named: %+v", large.column, id, found[0].Large)
		}
	}
	if s := f.stats(false); s.Retrying != exactly(int64(len(ids))) || s.FailedRetries.N.Precision != operator.Exact || len(s.FailedRetries.All) != 2 {
		t.Errorf("%+v", s)
	}
}

// isNamed reports whether the column is among the values of which only the size is shown. A slow machine shows small
// values as their size, too.
func isNamed(large []operator.Large, column string) bool {
	return slices.ContainsFunc(large, func(l operator.Large) bool { return l.Column == column && l.Stored > 0 })
}

func stored[T any](rows []T, of func(T) operator.StoredMessage) (all []operator.StoredMessage) {
	for _, row := range rows {
		all = append(all, of(row))
	}
	return all
}

// The server moves and deletes large rows; their values do not pass through the process.
func TestLargeRowsAreMovedAndDeleted(t *testing.T) {
	services.Thorough(t, "TestALargeRowHidesNoOther covers the views")
	f := newFixture(t)
	ids := withLargeRows(f)
	n := int64(len(ids))
	f.Exec(`UPDATE outbox_dead_letter SET id = id + 1000, message_id = gen_random_uuid()`)
	if done := f.requeue(operator.Filter{}, 1000); done.Done != n {
		t.Errorf("requeued: %+v", done)
	}
	replayed, err := f.operator().Change(t.Context(), operator.Change{Do: operator.Replay, Batch: 1000}, nil, quiet)
	if err != nil || replayed.Done != n {
		t.Errorf("replayed: %+v, %v", replayed, err)
	}
	retried, err := f.operator().Change(t.Context(), operator.Change{Do: operator.Retry, Batch: 1000}, nil, quiet)
	if err != nil || retried.Done != n {
		t.Errorf("retried: %+v, %v", retried, err)
	}
	if got := tabletest.One[int64](f, `SELECT count(*) FROM outbox WHERE pg_column_size(headers) > 10000`); got != 3*2 {
		t.Errorf("%d rows have their headers", got)
	}
	f.DeadLetter(1, "nack", "last_error", `repeat('x', 1200000)`)
	if purged, err := f.operator().Change(t.Context(), operator.Change{Do: operator.Purge, Filter: operator.Filter{Reason: text("nack")}, Batch: 1000}, nil, quiet); err != nil || purged.Done != 1 {
		t.Errorf("purged %+v, %v", purged, err)
	}
}
