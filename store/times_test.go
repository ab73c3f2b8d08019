package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// pastTimes are times that an application may store by accident. Go's zero time is the first.
func pastTimes() []string {
	return []string{
		"0001-01-01 00:00:00+00", "0001-01-01 00:00:00+00 BC", "0001-01-01 00:00:00.000001+00", "0001-12-31 23:59:59.999999+00",
		"4713-01-01 00:00:00+00 BC", "-infinity", "1970-01-01 00:00:00+00", "1677-09-21 00:00:00+00", "2000-01-01 00:00:00+00",
	}
}

// A time is never taken for null, in every way out of the table.
func TestARowWithAnyTimeIsSettled(t *testing.T) {
	f := newFixture(t)
	each := map[string]func(m *outbox.Message) outbox.Settlement{
		"delete": deleted, "retry": func(m *outbox.Message) outbox.Settlement { return retried(m, time.Hour) },
		"dead letter": func(m *outbox.Message) outbox.Settlement { return dead(m, true) }, "no room": noRoom,
	}
	for _, at := range append(pastTimes(), "null") {
		for what, settlement := range each {
			for _, key := range []string{"NULL", "'k'"} {
				name := fmt.Sprintf("%s, key %s, %s", at, key, what)
				f.Exec(`TRUNCATE outbox, outbox_dead_letter`)
				f.Insert(`(routing_key, payload, ordering_key, available_at, expires_at) VALUES ('r', '1', `+key+`, nullif($1, 'null')::timestamptz, nullif($1, 'null')::timestamptz)`, at)
				rows := f.sweep(f.IDs("true")...)
				if len(rows) != 1 {
					t.Fatalf("%s: %d rows were read", name, len(rows))
				}
				if left, expires := rows[0].TimeLeft(time.Now()); expires != (at != "null") || left > 0 {
					t.Errorf("%s: expires in %s, %t", name, left, expires)
				}
				if settled := f.settle(settlement(rows[0])); len(settled.Done) != 1 {
					t.Errorf("%s: %+v", name, settled)
				}
				got := tabletest.One[string](f, `SELECT coalesce((SELECT attempts || CASE WHEN available_at IS NULL THEN ' null'
					WHEN available_at > now() THEN ' later' ELSE ' past' END FROM outbox), 'gone')`)
				want := map[string]string{"delete": "gone", "dead letter": "gone", "retry": "1 later", "no room": "0 later"}
				if got != want[what] {
					t.Errorf("%s: the row is %q, want %q", name, got, want[what])
				}
			}
		}
	}
}

// A pass starts at the earliest time and ends at the latest.
func TestDueRowsOfAnyTimeAreFound(t *testing.T) {
	f := newFixture(t)
	for _, at := range append(pastTimes(), "infinity", "294276-12-31 23:59:59+00") {
		f.Insert(`(routing_key, payload, available_at) VALUES ('r', '1', $1::timestamptz), ('r', '1', $1::timestamptz)`, at)
	}
	var found []int64
	var after *outbox.Place
	for {
		page, _, err := f.store.FindDue(t.Context(), after, nil, 1)
		must(t, err)
		if len(page) == 0 {
			break
		}
		found, after = append(found, page[0].ID), &outbox.Place{Due: *page[0].Due, ID: page[0].ID}
	}
	equal(t, "found", found, tabletest.One[[]int64](f, `SELECT array_agg(id ORDER BY available_at, id) FROM outbox WHERE available_at < now()`))
}

// A statement that changes nothing is not a success: the row is there. Somebody else's change is not a fault.
func TestARowThatATriggerKeepsIsReported(t *testing.T) {
	f := newFixture(t)
	f.Exec(`CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	f.Exec(`CREATE TRIGGER keep BEFORE UPDATE OR DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION keep()`)
	for _, at := range append(pastTimes(), "null") {
		f.Insert(`(routing_key, payload, available_at) VALUES ('r', '1', nullif($1, 'null')::timestamptz)`, at)
	}
	for _, m := range f.read(0) {
		again := dead(m, true)
		again.Tried = true
		for _, one := range []outbox.Settlement{deleted(m), retried(m, time.Hour), dead(m, true), again} {
			if settled := f.settle(one); len(settled.Kept) != 1 || len(settled.Gone)+len(settled.Done) != 0 {
				t.Errorf("row %d, action %d: %+v", m.ID, one.Decision.Action, settled)
			}
		}
		changed := *m
		changed.AvailableAt = new(time.Now())
		if settled := f.settle(retried(&changed, time.Hour)); len(settled.Gone) != 1 {
			t.Errorf("row %d, changed by somebody else: %+v", m.ID, settled)
		}
	}
}
