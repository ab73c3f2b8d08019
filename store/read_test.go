package store_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestNullAndEmptyValuesAreDistinguished(t *testing.T) {
	f := newFixture(t)
	f.Insert(`(routing_key, payload_bytes, exchange) VALUES ('', '', '')`)
	f.Insert(`(routing_key, payload) VALUES ('', 'null')`)
	rows := f.sweep(f.IDs("true")...)
	empty, none := rows[0], rows[1]
	if !empty.Binary || empty.Payload == nil || len(empty.Payload) != 0 || empty.Exchange == nil || *empty.Exchange != "" {
		t.Errorf("%+v", empty)
	}
	if none.Binary || string(none.Payload) != "null" || none.Exchange != nil || none.OrderingKey != nil ||
		none.Headers != nil || none.Properties != nil || none.AvailableAt != nil || none.XID != 0 {
		t.Errorf("%+v", none)
	}
}

func TestLastIDIncludesOpenTransactions(t *testing.T) {
	f := newFixture(t)
	last := func() int64 {
		id, _ := f.lastID(true)
		return id
	}
	if got := last(); got != 0 {
		t.Errorf("for an empty table: %d", got)
	}
	tx := tabletest.Begin(t, f.Conn, `INSERT INTO outbox (routing_key, payload) VALUES ('r', '1'), ('r', '2')`)
	if got := last(); got != 2 {
		t.Errorf("with two uncommitted rows: %d", got)
	}
	tabletest.End(t, tx.Rollback)
	f.Exec(`ALTER TABLE outbox ALTER id DROP IDENTITY`)
	if _, ok, err := f.store.LastID(t.Context()); ok || err != nil {
		t.Errorf("without a sequence: ok = %v, err = %v", ok, err)
	}
}

// Applications may set ids, and copies and restarts leave the sequence behind. No row may have a greater id.
func TestLastIDIsTheGreatestOfSequenceAndRows(t *testing.T) {
	const row, id = `(id, routing_key, payload) OVERRIDING SYSTEM VALUE VALUES ($1, 'r', '1')`, int64(math.MaxInt64)
	f := newFixture(t)
	for _, c := range []struct {
		name  string
		set   string
		ids   []int64
		want  int64
		known bool
	}{
		{"unused sequence, no row", `SELECT`, nil, 0, true},
		{"unused sequence", `SELECT`, []int64{7, 4000}, 4000, true},
		{"ids below zero", `SELECT`, []int64{math.MinInt64, -7}, 0, true},
		{"sequence above the rows", `SELECT setval('outbox_id_seq', 500)`, []int64{7}, 500, true},
		{"sequence below the rows", `SELECT setval('outbox_id_seq', 5)`, []int64{3, 5, 6}, 6, true},
		{"greatest id", `SELECT setval('outbox_id_seq', 500)`, []int64{7, id}, id, true},
		{"sequence at its end", `SELECT setval('outbox_id_seq', 9223372036854775807)`, []int64{7}, id, true},
		{"large steps", `ALTER SEQUENCE outbox_id_seq INCREMENT 1000 RESTART 1000`, []int64{1001}, 1001, true},
		{"cycle", `ALTER SEQUENCE outbox_id_seq INCREMENT 1 MAXVALUE 100 RESTART 1 CYCLE`, []int64{2, 99}, 99, true},
		{"descending", `ALTER SEQUENCE outbox_id_seq INCREMENT -1 MINVALUE -100 MAXVALUE 100 RESTART -5; SELECT setval('outbox_id_seq', -5)`, []int64{-1, -2}, -1, true},
		{"the table is locked", `BEGIN; LOCK TABLE outbox`, nil, 0, false},
		{"no sequence", `ROLLBACK; ALTER TABLE outbox ALTER id DROP IDENTITY`, []int64{7}, 0, false},
	} {
		f.Exec(`TRUNCATE outbox`)
		for _, id := range c.ids {
			f.Insert(row, id)
		}
		_, err := f.Conn.Exec(t.Context(), c.set, pgx.QueryExecModeSimpleProtocol)
		must(t, err)
		if got, ok := f.lastID(c.known); got != c.want || ok != c.known {
			t.Errorf("%s: %d, %t, want %d, %t", c.name, got, ok, c.want, c.known)
		}
	}
}

// lastID reads the greatest id; if it is known, also on a machine that needs more than lastIDWait for it.
func (f *fixture) lastID(known bool) (id int64, ok bool) {
	f.Helper()
	await.Until(f, "the greatest id", func() bool {
		var err error
		if id, ok, err = f.store.LastID(f.Context()); err != nil {
			f.Fatal(err)
		}
		return ok || !known
	})
	return id, ok
}

// A message replaces only those that would have gone to the same place, in the same order.
func TestACoalesceKeyCountsWithinOneDestination(t *testing.T) {
	f := newFixture(t)
	f.Exec(`INSERT INTO outbox (exchange, routing_key, ordering_key, coalesce_key, payload)
		SELECT e, r, o, 'c', '1' FROM generate_series(1, 3), unnest('{NULL,"",x}'::text[]) e, unnest('{r,s}'::text[]) r, unnest('{NULL,k,l}'::text[]) o`)
	replaced := strings.ReplaceAll(`SELECT count(*)::int FROM outbox r WHERE `+store.IsSuperseded, "{outbox}", "outbox")
	if n, all := tabletest.One[int](f, replaced), 3*3*2*3; n != all*2/3 {
		t.Errorf("%d of %d rows are replaced, want two of three in each destination", n, all)
	}
	f.Exec(`DELETE FROM outbox`)
	// An application that floods a key with messages to elsewhere costs little, and replaces nothing.
	f.Exec(`INSERT INTO outbox (routing_key, coalesce_key, payload) SELECT 'r' || i, 'c', '1' FROM generate_series(1, 20000) i`)
	if n := tabletest.One[int](f, replaced); n != 0 {
		t.Errorf("%d rows are replaced by messages to other places", n)
	}
}

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
