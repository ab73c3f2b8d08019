package store_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func keeping(f *fixture) *fixture {
	f.Helper()
	_, err := migrations.MakeHistory(f.Context(), f.Conn, tabletest.Name())
	must(f, err)
	f.store = open(f, f.URL, store.Options{Table: tabletest.Name(), KeepPublished: time.Hour})
	must(f, f.store.Check(f.Context()))
	return f
}

func TestPublishedRowsMoveToTheHistory(t *testing.T) {
	f := keeping(newFixture(t))
	f.Exec(`INSERT INTO outbox (exchange, routing_key, ordering_key, payload, headers, properties, redacted_payload, last_error, attempts, expires_at, max_attempts, coalesce_key)
		SELECT 'x', 'r', 'k', to_json(i), '{"h": 1}', '{"type": "t"}', '"***"', 'nack: full', 2, '2100-01-01', 3, 'c' FROM generate_series(1, 6) i`)
	f.Exec(`CREATE TABLE before AS SELECT o.*, o.payload::text AS body FROM outbox o`)
	settle := func(ids ...int) {
		var batch []outbox.Settlement
		for _, m := range f.read(0) {
			for _, id := range ids {
				if m.ID == int64(id) {
					batch = append(batch, deleted(m))
				}
			}
		}
		if settled := f.settle(batch...); len(settled.Done) != len(ids) {
			t.Errorf("%v: %d settled", ids, len(settled.Done))
		}
	}
	settle(1, 2) // close ids
	settle(3)
	f.Exec(`UPDATE outbox SET id = 1000000 WHERE id = 6`)
	f.Exec(`UPDATE before SET id = 1000000 WHERE id = 6`)
	settle(4, 1000000) // distant ids
	settle(5)
	if n := tabletest.One[int](f, `SELECT count(*)::int FROM outbox`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	same := tabletest.One[int](f, `SELECT count(*)::int FROM before b JOIN outbox_published p USING (id, message_id, created_at, expires_at, attempts, schema_version,
		max_attempts, exchange, routing_key, ordering_key, coalesce_key, headers, properties, last_error)
		WHERE p.payload::text = b.body AND p.redacted_payload::text = b.redacted_payload::text AND p.published_at > b.created_at`)
	if same != 6 {
		t.Errorf("%d of 6 rows are unchanged in the history", same)
	}
	// Rejected, dead and dropped rows are not published.
	f.Plain(3)
	rows := f.read(0)
	expired := deleted(rows[2])
	expired.Decision.Reason = outbox.ReasonExpired
	f.settle(retried(rows[0], time.Hour), dead(rows[1], true), expired)
	if n := tabletest.One[int](f, `SELECT count(*)::int FROM outbox_published`); n != 6 {
		t.Errorf("%d rows are in the history", n)
	}
}

func TestTheHistoryHasOnePartitionADay(t *testing.T) {
	f := keeping(newFixture(t))
	insert := func(at string) {
		f.Exec(`INSERT INTO outbox_published (id, created_at, published_at, message_id, attempts, schema_version, routing_key, payload)
			SELECT coalesce(max(id), 0) + 1, now(), ` + at + `, gen_random_uuid(), 0, 1, 'r', '1' FROM outbox_published`)
	}
	rotate := func(keep time.Duration, want int) {
		t.Helper()
		if n, err := f.store.RotatePublished(t.Context(), keep); err != nil || n != want {
			t.Errorf("dropped %d, %v, want %d", n, err, want)
		}
	}
	partitions := func() string {
		return tabletest.One[string](f, `SELECT string_agg(relid::text || ' ' || (SELECT count(*) FROM outbox_published p WHERE p.tableoid = relid), ', ' ORDER BY relid::text)
			FROM pg_partition_tree('outbox_published') WHERE isleaf`)
	}
	insert(`now() - interval '10 days'`) // before there are partitions
	rotate(30*24*time.Hour, 0)
	rotate(30*24*time.Hour, 0)
	insert(`now()`)
	day := func(offset int) string {
		return tabletest.One[string](f, `SELECT 'outbox_p' || to_char((now() AT TIME ZONE 'UTC')::date + $1::int, 'YYYYMMDD')`, offset)
	}
	if got, want := partitions(), fmt.Sprintf("outbox_p 1, %s 1, %s 0, %s 0", day(0), day(1), day(2)); got != want {
		t.Errorf("partitions %s, want %s", got, want)
	}
	// An old partition, as a relay has left it.
	f.Exec(`CREATE TABLE outbox_p20200101 PARTITION OF outbox_published FOR VALUES FROM ('2020-01-01Z') TO ('2020-01-02Z')`)
	insert(`'2020-01-01 12:00Z'`)
	rotate(24*time.Hour, 1)
	if got, want := partitions(), fmt.Sprintf("outbox_p 0, %s 1, %s 0, %s 0", day(0), day(1), day(2)); got != want {
		t.Errorf("partitions %s, want %s", got, want)
	}
	// A reader of the history delays neither the relay nor the rotation for long.
	f.Exec(`CREATE TABLE outbox_p20200101 PARTITION OF outbox_published FOR VALUES FROM ('2020-01-01Z') TO ('2020-01-02Z')`)
	reader := tabletest.Connect(t, f.URL)
	tabletest.Run(t, reader, `BEGIN; SELECT count(*) FROM outbox_published`)
	rotate(24*time.Hour, 0)
	f.Plain(1)
	f.settle(deleted(f.read(0)[0]))
	tabletest.Run(t, reader, `COMMIT`)
	rotate(24*time.Hour, 1)
}

func TestCheckNamesAMissingHistory(t *testing.T) {
	f := newFixture(t)
	s := open(t, f.URL, store.Options{Table: tabletest.Name(), KeepPublished: time.Hour})
	if err := s.Check(t.Context()); !problem.Is(err) {
		t.Errorf("without a history: %v", err)
	}
}

// An index finds the old rows, so other rows of the default partition cost nothing.
func TestOldRowsOfTheDefaultPartitionAreDeletedInBatches(t *testing.T) {
	f := keeping(newFixture(t))
	f.Exec(`INSERT INTO outbox_published (id, created_at, published_at, message_id, attempts, schema_version, routing_key, payload)
		SELECT i, now(), CASE WHEN i <= 12000 THEN now() - interval '10 days' ELSE now() + interval '10 days' END, gen_random_uuid(), 0, 1, 'r', '1'
		FROM generate_series(1, 20000) i`)
	for _, want := range []int{10000, 8000, 8000} {
		_, err := f.store.RotatePublished(t.Context(), 24*time.Hour)
		must(t, err)
		if n := tabletest.One[int](f, `SELECT count(*)::int FROM outbox_p`); n != want {
			t.Fatalf("%d rows are left, want %d", n, want)
		}
	}
}

// The relay creates missing partitions itself. Any other fault of the history is named, and not taken for one of the row.
func TestMissingPartitionsOfTheHistoryAreCreated(t *testing.T) {
	for name, drop := range map[string]string{
		"all":         `SELECT relid FROM pg_partition_tree('outbox_published') WHERE isleaf`,
		"the default": `SELECT 'outbox_p'::regclass`,
		"those of days": `SELECT relid FROM pg_partition_tree('outbox_published') WHERE isleaf AND relid <> 'outbox_p'::regclass
			UNION ALL SELECT 'outbox_p'::regclass`,
	} {
		t.Run(name, func(t *testing.T) {
			f := keeping(newFixture(t))
			_, err := f.store.RotatePublished(t.Context(), time.Hour)
			must(t, err)
			f.Exec(`DO $$ DECLARE part regclass; BEGIN
				FOR part IN ` + drop + ` LOOP EXECUTE format('DROP TABLE %s', part); END LOOP; END $$`)
			f.Plain(2)
			rows := f.read(0)
			if settled := f.settle(deleted(rows[0]), deleted(rows[1])); len(settled.Done) != 2 {
				t.Errorf("settled: %+v", settled)
			}
			if n := tabletest.One[int](f, `SELECT count(*)::int FROM outbox_published`); n != 2 {
				t.Errorf("%d rows are in the history", n)
			}
		})
	}
}

// If the relay cannot create a partition, no row is at fault: the error names the history and has a hint.
func TestAPartitionThatCannotBeCreatedIsNoFaultOfARow(t *testing.T) {
	const empty = `DO $$ DECLARE part regclass; BEGIN
		FOR part IN SELECT relid FROM pg_partition_tree('outbox_published') WHERE isleaf LOOP
			EXECUTE format('DROP TABLE %s', part); END LOOP; END $$; `
	for name, c := range map[string]struct{ breaks, hint string }{
		"no function":                  {empty + `DROP FUNCTION outbox_rotate(interval)`, "setup --keep-published"},
		"a detached default":           {strings.ReplaceAll(empty, "DROP TABLE", "ALTER TABLE outbox_published DETACH PARTITION"), "check --keep-published"},
		"another function":             {empty + `CREATE OR REPLACE FUNCTION outbox_rotate(keep interval) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$`, "check --keep-published"},
		"a table has the default name": {empty + `CREATE TABLE outbox_p (n integer)`, "check --keep-published"},
	} {
		t.Run(name, func(t *testing.T) {
			f := keeping(newFixture(t))
			f.Exec(c.breaks)
			if name == "a table has the default name" {
				f.Exec(fmt.Sprintf(`CREATE TABLE outbox_p%s (n integer)`, time.Now().UTC().Format("20060102")))
			}
			f.Plain(1)
			_, err := f.store.Settle(t.Context(), []outbox.Settlement{deleted(f.read(0)[0])})
			if err == nil || store.IsRowFault(err) || pgcode.Of(err) == "" || !strings.Contains(err.Error(), "outbox_published") {
				t.Errorf("the error is %v", err)
			}
			if hint := problem.Hint(err); !strings.Contains(hint, c.hint) {
				t.Errorf("the hint is %q", hint)
			}
		})
	}
}

func TestOldDeadLettersAreDeletedInBatches(t *testing.T) {
	f := newFixture(t)
	for id := range int64(5) {
		f.DeadLetter(id, "nack", "dead_at", "now() - interval '2 days'", "ordering_key", []string{"NULL", "'k'"}[id%2])
	}
	f.DeadLetter(9, "nack")
	left := func() []int64 {
		return tabletest.One[[]int64](f, `SELECT array_agg(id ORDER BY id) FROM outbox_dead_letter`)
	}
	blocking := open(t, f.URL, store.Options{Table: tabletest.Name(), Block: true})
	n, err := blocking.DeleteDeadLetters(t.Context(), 24*time.Hour, 100)
	if err != nil || n != 3 {
		t.Errorf("%d, %v", n, err)
	}
	equal(t, "with keys that are held up", left(), []int64{1, 3, 9})
	for _, want := range []int64{1, 1, 0} {
		if n, err := f.store.DeleteDeadLetters(t.Context(), 24*time.Hour, 1); err != nil || n != want {
			t.Errorf("%d, %v, want %d", n, err, want)
		}
	}
	equal(t, "otherwise", left(), []int64{9})
}

// The hints work when they are pasted.
func TestCleaningUpWithoutAPrivilegeNamesTheGrant(t *testing.T) {
	f := newFixture(t)
	_, err := migrations.MakeHistory(t.Context(), f.Conn, tabletest.Name())
	must(t, err)
	address := f.role()
	s := open(t, address, store.Options{Table: tabletest.Name(), KeepPublished: time.Hour})
	for what, clean := range map[string]func() error{
		"dead letters": func() error { _, err := s.DeleteDeadLetters(t.Context(), time.Hour, 1); return err },
		"history":      func() error { _, err := s.RotatePublished(t.Context(), time.Hour); return err },
	} {
		for range 3 { // the privileges of one object each
			err := clean()
			if err == nil {
				break
			}
			fix := problem.Hint(err)
			if !strings.HasPrefix(fix, "GRANT ") {
				t.Fatalf("%s: %v, hint %q", what, err, fix)
			}
			f.Exec(fix)
		}
		if err := clean(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Somebody reads the history while its oldest day is to be dropped.
func TestCleaningUpNamesTheLockedTable(t *testing.T) {
	f := keeping(newFixture(t))
	pid := strconv.Itoa(int(f.Conn.PgConn().PID()))
	for table, clean := range map[string]func() error{
		"outbox_dead_letter": func() error { _, err := f.store.DeleteDeadLetters(t.Context(), time.Hour, 1); return err },
		"outbox_published":   func() error { _, err := f.store.RotatePublished(t.Context(), time.Hour); return err },
	} {
		tx := tabletest.Begin(t, f.Conn, `LOCK TABLE `+table)
		err := clean()
		if hint := problem.Hint(err); !strings.Contains(err.Error(), "public."+table+" is locked by Postgres process "+pid) ||
			!strings.Contains(hint, "pg_terminate_backend("+pid+")") {
			t.Errorf("%v, hint %q", err, hint)
		}
		tabletest.End(t, tx.Rollback)
	}
}
