package store_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

const (
	duePast   = `now() - interval '1 minute'`
	dueFuture = `now() + interval '1 hour'`
)

func TestNextDueReturnsTheTimeUntilARowIsDue(t *testing.T) {
	f := newFixture(t)
	next := func() time.Duration {
		t.Helper()
		d, err := f.store.NextDue(t.Context())
		must(t, err)
		return d
	}
	f.Plain(2)
	if d := next(); d != 24*time.Hour {
		t.Errorf("nothing has a time: %s", d)
	}
	f.Insert(`(routing_key, payload, available_at) VALUES ('r', '1', 'infinity')`)
	if d := next(); d != 24*time.Hour {
		t.Errorf("never due: %s", d)
	}
	f.Insert(`(routing_key, payload, available_at) VALUES ('r', '1', clock_timestamp() + interval '1 hour')`)
	if d := next(); d > time.Hour || d < 50*time.Minute {
		t.Errorf("due in an hour: %s", d)
	}
	f.Insert(`(routing_key, payload, available_at) VALUES ('r', '1', '-infinity')`)
	if d := next(); d > 0 {
		t.Errorf("due now: %s", d)
	}
}

func TestASweepReadsOnlyEligibleUnlockedRows(t *testing.T) {
	f := newFixture(t)
	fresh := f.Insert(`(routing_key, payload) VALUES ('r', '1')`)
	due := f.Insert(`(routing_key, payload, available_at) VALUES ('r', '1', ` + duePast + `)`)
	always := f.Insert(`(routing_key, payload, available_at) VALUES ('r', '1', '-infinity')`)
	f.Insert(`(routing_key, payload, available_at) VALUES ('r', '1', ` + dueFuture + `)`)
	f.Insert(`(routing_key, payload, available_at) VALUES ('r', '1', 'infinity')`)
	f.Insert(`(routing_key, payload, available_at, schema_version) VALUES ('r', '1', ` + duePast + `, 2)`)
	later := f.Insert(`(routing_key, payload, created_at) VALUES ('r', '1', 'infinity')`)
	ids := f.IDs("true")
	for upTo, want := range map[int64][]int64{math.MinInt64: {due, always}, fresh: {fresh, due, always}, math.MaxInt64: {fresh, due, always, later}} {
		rows, _, err := f.store.ReadRows(t.Context(), ids, upTo)
		if equal(t, fmt.Sprint("up to ", upTo), idsOf(rows), want); err != nil {
			t.Fatal(err)
		}
	}
	equal(t, "again, since a sweep keeps no lock", idsOf(f.sweep(ids...)), []int64{fresh, due, always, later})
	other := tabletest.Connect(t, f.URL)
	if _, err := other.Exec(t.Context(), `BEGIN; SELECT FROM outbox WHERE id = $1 FOR UPDATE`, due); err == nil {
		t.Fatal("two statements with arguments")
	}
	tabletest.Run(t, other, fmt.Sprintf(`BEGIN; SELECT FROM outbox WHERE id = %d FOR UPDATE`, due))
	equal(t, "without the locked row", idsOf(f.sweep(ids...)), []int64{fresh, always, later})
}

func TestARangeHasTheFirstRowsThatMayLeave(t *testing.T) {
	f := newFixture(t)
	f.Plain(12)
	f.Exec(`UPDATE outbox SET ordering_key = 'k' WHERE id = 3`)
	f.Exec(`UPDATE outbox SET available_at = ` + dueFuture + ` WHERE id = 4`)
	f.Exec(`UPDATE outbox SET schema_version = 2 WHERE id = 5`)
	tabletest.End(t, tabletest.Begin(t, f.Conn, `SELECT FROM outbox WHERE id = 7 FOR KEY SHARE`).Rollback)
	before := tabletest.One[int64](f, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`)
	for _, one := range []struct {
		what       string
		upTo       int64
		rows       int
		held, want []int64
		last       int64
	}{
		{"up to a row", 6, 3, nil, []int64{1, 2, 6}, 6},
		{"without rows in memory", 7, 3, []int64{2}, []int64{1, 6}, 7},
		{"three", 11, 3, []int64{1, 2}, []int64{6, 8}, 8},
		{"the others", 11, 10, []int64{1, 2}, []int64{6, 8, 9, 10, 11}, 11},
	} {
		p, err := f.store.ReadRange(t.Context(), outbox.Range{From: 0, UpTo: one.upTo, Rows: one.rows, Bytes: 1 << 20, Held: one.held})
		equal(t, one.what, idsOf(p.Messages), one.want)
		if err != nil || p.UpTo != one.last || p.Position < uint64(before) || (len(p.Traced) == 1) != (one.upTo >= 7) {
			t.Errorf("%s: read up to %d, position %d, traced %v, %v", one.what, p.UpTo, p.Position, p.Traced, err)
		}
	}
}

func TestAnUnreadableRowIsNamed(t *testing.T) {
	f := newFixture(t)
	f.Plain(1)
	f.Exec(`ALTER TABLE outbox ALTER routing_key DROP NOT NULL`)
	f.Insert(`(payload) VALUES ('1')`)
	if rows := f.sweep(1, 2); len(rows) != 2 || rows[0].NoRoutingKey || !rows[1].NoRoutingKey || rows[1].ID != 2 {
		t.Errorf("got %+v", rows)
	}
}

func TestADeadLetterBlocksItsKeyIfConfigured(t *testing.T) {
	f := newFixture(t)
	f.store = open(t, f.URL, store.Options{Table: tabletest.Name(), Block: true})
	for _, key := range []string{"dead", "free"} {
		f.Insert(`(routing_key, payload, ordering_key) VALUES ('r', '1', $1)`, key)
	}
	f.settle(dead(f.read(0)[0], true))
	f.Insert(`(routing_key, payload, ordering_key) VALUES ('r', '1', 'dead')`)
	runs, _, err := f.store.FindRuns(t.Context(), []string{"dead", "free"}, 1, math.MaxInt64)
	if err != nil || len(runs) != 2 || runs[0][0].Ready || !runs[1][0].Ready {
		t.Errorf("got %+v, %v", runs, err)
	}
	equal(t, "read", idsOf(f.sweep(2, 3)), []int64{2})
	f.Exec(`DELETE FROM outbox_dead_letter`)
	equal(t, "read after the purge", idsOf(f.sweep(2, 3)), []int64{2, 3})
}

func TestKeysAreFoundByTheirOldestRow(t *testing.T) {
	f := newFixture(t)
	f.Exec(`INSERT INTO outbox (routing_key, payload, ordering_key, available_at) SELECT 'r', '1', 'key ' || i % 7, CASE WHEN i = 3 THEN now() + interval '1 h' END
		FROM generate_series(1, 70) i`)
	f.Insert(`(routing_key, payload, ordering_key) VALUES ('r', '1', '')`)
	var after *string
	var keys []string
	for more := true; more; {
		runs, _, err := f.store.FindKeys(t.Context(), after, 3, 2, math.MaxInt64)
		must(t, err)
		for _, run := range runs {
			after = run[0].OrderingKey
			keys = append(keys, *after)
			if want := *after != "key 3"; run[0].Ready != want {
				t.Errorf("key %q is ready: %v", *after, run[0].Ready)
			}
			if want := 2; *after != "" && (len(run) != want || run[1].ID != run[0].ID+7) {
				t.Errorf("key %q has the rows %v", *after, refIDs(run))
			}
		}
		more = len(runs) == 3
	}
	if got := fmt.Sprintf("%q", keys); got != `["" "key 0" "key 1" "key 2" "key 3" "key 4" "key 5" "key 6"]` {
		t.Errorf("got %s", got)
	}
	runs, _, err := f.store.FindRuns(t.Context(), []string{"key 5", "key 3", "none"}, 4, math.MaxInt64)
	if err != nil || len(runs) != 2 {
		t.Fatalf("got %+v, %v", runs, err)
	}
	equal(t, "the first run", refIDs(runs[0]), []int64{5, 12, 19, 26})
	equal(t, "the second run", refIDs(runs[1]), []int64{3, 10, 17, 24})
	if runs[1][0].Ready || !runs[1][1].Ready {
		t.Error("the result does not say which rows are ready")
	}
}

func TestRowsWithTheSameTimeAreFoundPageByPage(t *testing.T) {
	f := newFixture(t)
	f.Exec(`INSERT INTO outbox (routing_key, payload, available_at) SELECT 'r', '1', now() - interval '1 h' FROM generate_series(1, 5)`)
	f.Exec(`INSERT INTO outbox (routing_key, payload, available_at) SELECT 'r', '1', now() - interval '1 m' FROM generate_series(1, 2)`)
	var found []int64
	var after *outbox.Place
	var until *time.Time
	for range 4 {
		page, at, err := f.store.FindDue(t.Context(), after, until, 3)
		must(t, err)
		if until == nil {
			until = &at
			f.Exec(`INSERT INTO outbox (routing_key, payload, available_at) VALUES ('due later', '1', clock_timestamp())`)
		}
		for _, row := range page {
			found, after = append(found, row.ID), &outbox.Place{Due: *row.Due, ID: row.ID}
		}
	}
	equal(t, "found", found, []int64{1, 2, 3, 4, 5, 6, 7})
}

// They have only the text of Postgres, without "error preprocessing batch (prepare)".
func TestErrorsHaveNoPhrasesOfTheDriver(t *testing.T) {
	f := newFixture(t)
	f.Exec(`ALTER TABLE outbox DROP COLUMN available_at`)
	_, _, find := f.store.FindKeys(t.Context(), nil, 10, 1, math.MaxInt64)
	_, _, read := f.store.ReadRows(t.Context(), []int64{1}, math.MaxInt64)
	for want, err := range map[string]error{
		"find ordering keys of public.outbox: ERROR: column r.available_at does not exist": find,
		"read rows of public.outbox: ERROR: column r.available_at does not exist":          read,
	} {
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// It follows the database's clock, not that of this process.
func TestASweepReturnsTheRemainingTimeOfARow(t *testing.T) {
	f := newFixture(t)
	for _, expires := range []string{"now() + interval '1 h'", "now() - interval '1 h'", "'infinity'", "'-infinity'", "NULL"} {
		f.Insert(`(routing_key, payload, expires_at) VALUES ('r', '1', ` + expires + `)`)
	}
	rows := f.sweep(f.IDs("true")...)
	between := func(i int, least, most time.Duration) {
		t.Helper()
		if left, expires := rows[i].TimeLeft(time.Now()); !expires || left < least || left > most {
			t.Errorf("row %d: %s, %v", i, left, expires)
		}
	}
	between(0, 59*time.Minute, time.Hour)
	between(1, -61*time.Minute, -time.Hour)
	between(2, 1000*time.Hour, math.MaxInt64)
	between(3, math.MinInt64, -1000*time.Hour)
	if _, expires := rows[4].TimeLeft(time.Now()); expires {
		t.Error("a row without expires_at expires")
	}
}

// The broker's last error says more than "expired".
func TestAnExpiredDeadLetterKeepsItsError(t *testing.T) {
	f := newFixture(t)
	f.Insert(`(routing_key, payload, expires_at, last_error) VALUES ('a', '1', now(), 'nack: full')`)
	f.Insert(`(routing_key, payload, expires_at) VALUES ('b', '1', now() + interval '1 h')`)
	var batch []outbox.Settlement
	for _, m := range f.read(0) {
		batch = append(batch, outbox.Settlement{Message: m, Decision: outbox.Decision{Action: outbox.DeadLetter, Reason: outbox.ReasonExpired, Detail: "expired: x"}})
	}
	f.settle(batch...)
	if got := tabletest.One[string](f, `SELECT string_agg(last_error, ', ' ORDER BY id) FROM outbox_dead_letter`); got != "nack: full, expired: x" {
		t.Error(got)
	}
}

// The server only says which function or operator is missing.
func TestAColumnOfAWrongTypeIsNamed(t *testing.T) {
	f := newFixture(t)
	f.Exec(`CREATE TYPE rke AS ENUM ('k')`)
	for column, types := range map[string][2]string{
		"routing_key": {"rke", "text"}, "exchange": {"bytea", "text"}, "headers": {"text[]", "jsonb"}, "available_at": {"text", "timestamp with time zone"},
		"schema_version": {"text", "smallint"}, "message_id": {"text", "uuid"}, "payload_bytes": {"jsonb", "bytea"},
	} {
		f.Exec(`ALTER TABLE outbox DROP COLUMN ` + column + ` CASCADE`)
		f.Exec(`ALTER TABLE outbox ADD COLUMN ` + column + ` ` + types[0])
		f.Exec(`TRUNCATE outbox; INSERT INTO outbox (routing_key, payload) VALUES ('k', '1')`)
		var failed error
		db := open(t, f.URL, store.Options{Table: tabletest.Name()}) // its statements are prepared for these types
		for _, statement := range []func() error{
			func() error { _, err := db.FindNewest(t.Context(), 0, 1<<40, 10); return err },
			func() error { _, _, err := db.ReadRows(t.Context(), f.IDs("true"), 1<<40); return err },
			func() error { _, err := db.NextDue(t.Context()); return err },
		} {
			if err := statement(); err != nil && failed == nil {
				failed = err
			}
		}
		if failed == nil {
			t.Logf("%s as %s is read without an error", column, types[0])
		} else if got, gone := db.Explain(t.Context(), failed); gone || !strings.HasPrefix(got.Error(), "a column of table public.outbox may have a wrong type: ") {
			t.Errorf("%s: got %v", column, got)
		}
		f.Exec(`ALTER TABLE outbox DROP COLUMN ` + column)
		f.Exec(`ALTER TABLE outbox ADD COLUMN ` + column + ` ` + types[1])
	}
}
