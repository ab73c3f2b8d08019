package store_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestDeleteReportsMissingRows(t *testing.T) {
	f := newFixture(t)
	f.Plain(4)
	m := f.read(0)
	f.Exec(`DELETE FROM outbox WHERE id = 2`)
	settled := f.settle(deleted(m[2]), deleted(m[1]), deleted(m[0]))
	equal(t, "done", settledIDs(settled.Done), []int64{1, 3})
	equal(t, "gone", settledIDs(settled.Gone), []int64{2})
	equal(t, "left", f.IDs("true"), []int64{4})
	again := f.settle(deleted(m[0]))
	equal(t, "gone when settled again", settledIDs(again.Gone), []int64{1})
}

// Distant ids, the least and the greatest id, and a repeated id use another statement.
func TestDeleteOfRowsWithDistantIDs(t *testing.T) {
	f := newFixture(t)
	for _, id := range []string{"-9223372036854775808", "-1", "0", "70000", "9223372036854775807"} {
		f.Insert(`(id, routing_key, payload) OVERRIDING SYSTEM VALUE VALUES (` + id + `, 'r', '1')`)
	}
	m := f.read(-1 << 63) // the page starts after the least id
	if len(m) != 4 {
		t.Fatalf("%d rows were read", len(m))
	}
	least := &outbox.Message{Row: outbox.Row{ID: -1 << 63, MessageID: outbox.UUID(tabletest.One[[16]byte](f, `SELECT message_id FROM outbox WHERE id = -9223372036854775808`))}}
	namesake := &outbox.Message{Row: outbox.Row{ID: m[0].ID}}
	settled := f.settle(deleted(m[3]), deleted(least), deleted(namesake), deleted(m[2]), deleted(m[0]))
	equal(t, "done", settledIDs(settled.Done), []int64{-1 << 63, -1, 70000, 1<<63 - 1})
	equal(t, "gone", settledIDs(settled.Gone), []int64{-1})
	equal(t, "left", f.IDs("true"), []int64{0})
	near := f.settle(deleted(namesake), deleted(m[1]))
	equal(t, "done of two that are near", settledIDs(near.Done), []int64{0})
}

func TestDeleteDistinguishesInvisibleFromMissingRows(t *testing.T) {
	f := newFixture(t)
	_, err := f.store.Snapshot(t.Context(), false) // it connects to its first server
	must(t, err)
	tx, err := f.Conn.Begin(t.Context())
	must(t, err)
	m := &outbox.Message{Server: f.store.Restarts()}
	must(t, tx.QueryRow(t.Context(), `INSERT INTO outbox (routing_key, payload) VALUES ('r', '1')
		RETURNING id, message_id, (pg_current_xact_id()::text::bigint % 4294967296)`).Scan(&m.ID, (*[16]byte)(&m.MessageID), &m.XID))
	for _, s := range []outbox.Settlement{deleted(m), retried(m, time.Hour), dead(m, true)} {
		settled := f.settle(s)
		equal(t, "not visible", settledIDs(settled.NotVisible), []int64{m.ID})
		if settled.Done != nil || settled.Gone != nil {
			t.Errorf("%+v", settled)
		}
	}
	lost := *m
	lost.Server = f.store.Restarts() + 1 // this server does not know the transaction
	equal(t, "gone with its server", settledIDs(f.settle(deleted(&lost)).Gone), []int64{m.ID})
	tabletest.End(t, tx.Commit)
	equal(t, "done once it is visible", settledIDs(f.settle(deleted(m)).Done), []int64{m.ID})
	equal(t, "gone after that", settledIDs(f.settle(deleted(m)).Gone), []int64{m.ID})
}

func TestALockedRowDelaysNoOther(t *testing.T) {
	f := newFixture(t)
	f.Plain(9)
	m := f.read(0)
	tx := tabletest.Begin(t, f.Conn, `SELECT FROM outbox WHERE id IN (1, 4, 7) FOR UPDATE`)
	all := []outbox.Settlement{
		deleted(m[0]), deleted(m[1]), deleted(m[2]),
		retried(m[3], time.Hour), retried(m[4], time.Hour), retried(m[5], time.Hour),
		dead(m[6], true), dead(m[7], true), dead(m[8], true),
	}
	settled := f.settle(all...)
	equal(t, "done", settledIDs(settled.Done), []int64{2, 3, 5, 6, 8, 9})
	equal(t, "locked", settledIDs(settled.Locked), []int64{1, 4, 7})
	again := f.settle(settled.Locked...) // it no longer waits for the lock
	equal(t, "still locked", settledIDs(again.Locked), []int64{1, 4, 7})
	tabletest.End(t, tx.Rollback)
	equal(t, "done once the lock is gone", settledIDs(f.settle(again.Locked...).Done), []int64{1, 4, 7})
	equal(t, "left for their retry", f.IDs("true"), []int64{4, 5, 6})
}

// A deferred trigger fails at COMMIT, after the DELETE has worked. A row that was locked is deleted in a transaction.
func TestRowsOfAFailedCommitAreNotDone(t *testing.T) {
	f := newFixture(t)
	f.Plain(1)
	one := deleted(f.read(0)[0])
	f.Exec(`CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE check_violation; END'`)
	f.Exec(`CREATE CONSTRAINT TRIGGER late AFTER DELETE ON outbox DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION fails()`)
	for _, one.Locked = range []bool{false, true} {
		settled, err := f.store.Settle(t.Context(), []outbox.Settlement{one})
		if err == nil || settled.Done != nil || settled.Gone != nil {
			t.Errorf("locked before: %t: %v, %+v", one.Locked, err, settled)
		}
	}
}

// A relay has published the row, and was frozen before it wrote the rejection. Meanwhile another one has marked the row.
func TestARowThatAnotherRelayMayHavePublishedIsMarked(t *testing.T) {
	f := newFixture(t)
	f.Plain(6)
	m := f.read(0)
	m[0].PossibleDuplicate, m[1].PossibleDuplicate = true, true // it is late
	f.Exec(`UPDATE outbox SET possible_duplicate = true WHERE id > 4`)
	settled := f.settle(
		retried(m[0], time.Hour), dead(m[1], true), retried(m[2], time.Hour), dead(m[3], true), retried(m[4], time.Hour), dead(m[5], true))
	equal(t, "done", settledIDs(settled.Done), []int64{1, 3, 5, 2, 4, 6})
	equal(t, "marked", f.IDs("possible_duplicate"), []int64{1, 5})
	if !tabletest.One[bool](f, `SELECT array_agg(id ORDER BY id) = '{2,6}' FROM outbox_dead_letter WHERE possible_duplicate`) {
		t.Error("not exactly the dead letters 2 and 6 are marked")
	}
}

func TestAnOldReferenceDoesNotSettleANewRow(t *testing.T) {
	f := newFixture(t)
	f.Plain(1)
	old := f.read(0)[0]
	f.Exec(`TRUNCATE outbox RESTART IDENTITY`)
	f.Plain(1)
	for _, s := range []outbox.Settlement{deleted(old), retried(old, time.Hour), dead(old, true)} {
		equal(t, "gone", settledIDs(f.settle(s).Gone), []int64{1})
	}
	if !tabletest.One[bool](f, `SELECT attempts = 0 AND available_at IS NULL FROM outbox WHERE id = 1`) {
		t.Error("the new row was changed")
	}
	fresh := f.read(0)[0]
	settled := f.settle(deleted(old), deleted(fresh))
	if len(settled.Done) != 1 || settled.Done[0].Message != fresh || len(settled.Gone) != 1 || settled.Gone[0].Message != old {
		t.Errorf("both in one batch: %+v", settled)
	}
}

func TestRetryChargesOneAttemptAndWaits(t *testing.T) {
	f := newFixture(t)
	f.Plain(2)
	m := f.read(0)
	m[1].PossibleDuplicate = true
	settled := f.settle(retried(m[0], time.Hour), retried(m[1], 0))
	equal(t, "done", settledIDs(settled.Done), []int64{1, 2})
	if !tabletest.One[bool](f, `SELECT attempts = 1 AND last_error = 'nack: no' AND NOT possible_duplicate
		AND available_at - now() BETWEEN '59 minutes' AND '61 minutes' FROM outbox WHERE id = 1`) {
		t.Error("row 1 is not stored as a retry")
	}
	if !tabletest.One[bool](f, `SELECT attempts = 1 AND possible_duplicate AND available_at <= clock_timestamp() FROM outbox WHERE id = 2`) {
		t.Error("row 2 is not stored as due at once")
	}
	f.settle(noRoom(f.read(1)[0]))
	if !tabletest.One[bool](f, `SELECT attempts = 1 AND last_error = 'nack: no' AND available_at > now() FROM outbox WHERE id = 2`) {
		t.Error("row 2 was charged without a rejection, or does not wait")
	}
}

func TestAChangedTimeOfARowPreventsAnOldDecision(t *testing.T) {
	f := newFixture(t)
	f.Plain(3)
	f.Exec(`UPDATE outbox SET available_at = ` + duePast + ` WHERE id < 3`)
	old := f.read(0)
	f.Exec(`UPDATE outbox SET available_at = now()`)
	for _, m := range old {
		for _, s := range []outbox.Settlement{retried(m, time.Hour), dead(m, true)} {
			equal(t, "by an old time", settledIDs(f.settle(s).Gone), []int64{m.ID})
		}
	}
	changed := f.read(0)
	equal(t, "retry by the new time", settledIDs(f.settle(retried(changed[0], time.Hour)).Done), []int64{1})
	equal(t, "dead letter by the new time", settledIDs(f.settle(dead(changed[1], true)).Done), []int64{2})
	equal(t, "delete needs no time", settledIDs(f.settle(deleted(old[2])).Done), []int64{3})
}

// Columns of the application are kept if both tables have them.
func TestDeadLetterKeepsTheRowWithTheReason(t *testing.T) {
	f := newFixture(t)
	f.Exec(`ALTER TABLE outbox ADD "Odd "" name" text, ADD alone text, ADD other text, ADD gone text`)
	f.Exec(`ALTER TABLE outbox_dead_letter ADD other integer, ADD gone text, ADD "Odd "" name" text`)
	f.Insert(`(routing_key, exchange, ordering_key, payload, headers, properties, redacted_payload, attempts, created_at, last_error,
			expires_at, max_attempts, coalesce_key, "Odd "" name", other)
		VALUES ('r', 'e', 'k', ' {"a" : 1}', '{"h": 1}', '{"type": "t"}', '{"a": "***"}', 5, '2026-01-01', 'before', '2030-01-01', 9, 'c', 'odd', 'x')`)
	f.Insert(`(routing_key, ordering_key, payload_bytes) VALUES ('r2', 'k2', '\x00ff')`)
	rows := f.read(0)
	m, m2 := rows[0], rows[1]
	m.PossibleDuplicate = true
	before := tabletest.One[string](f, `SELECT to_jsonb(r) - '{available_at,attempts,possible_duplicate,last_error,alone,other,gone}'::text[] || '{}' FROM outbox r WHERE id = $1`, m.ID)
	equal(t, "done", settledIDs(f.settle(dead(m, true)).Done), []int64{1})
	f.Exec(`ALTER TABLE outbox_dead_letter DROP gone`)
	equal(t, "done with fewer columns", settledIDs(f.settle(dead(m2, false)).Done), []int64{2})
	equal(t, "left", f.IDs("true"), []int64{})
	after := tabletest.One[string](f, `SELECT to_jsonb(d) - '{attempts,possible_duplicate,last_error,failure_reason,dead_at,other}'::text[]
		FROM outbox_dead_letter d WHERE id = $1`, m.ID)
	if after != before {
		t.Errorf("kept %s\nof   %s", after, before)
	}
	if !tabletest.One[bool](f, `SELECT attempts = 6 AND failure_reason = 'too_large' AND last_error = 'too_large: 17 MiB' AND possible_duplicate
		AND dead_at > now() - interval '1 minute' AND payload::text = ' {"a" : 1}' FROM outbox_dead_letter WHERE id = 1`) {
		t.Error("row 1 is not stored as a dead letter")
	}
	if !tabletest.One[bool](f, `SELECT attempts = 0 AND payload IS NULL AND payload_bytes = '\x00ff' FROM outbox_dead_letter WHERE id = 2`) {
		t.Error("row 2 is not stored as a dead letter")
	}
}

// An application may insert that value, and no other row may be delayed by it.
func TestAttemptsStopAtTheirMaximum(t *testing.T) {
	f := newFixture(t)
	f.Insert(`(routing_key, payload, attempts) VALUES ('r', '1', 2147483647), ('r', '1', 2147483647), ('r', '1', 2147483647)`)
	f.Plain(1)
	m := f.read(0)
	settled := f.settle(retried(m[0], 0), dead(m[1], true), dead(m[2], false), retried(m[3], 0))
	equal(t, "done", settledIDs(settled.Done), []int64{1, 4, 2, 3})
	if !tabletest.One[bool](f, `SELECT bool_and(attempts = CASE id WHEN 1 THEN 2147483647 ELSE 1 END) FROM outbox`) {
		t.Error("attempts of the retries")
	}
	if !tabletest.One[bool](f, `SELECT bool_and(attempts = 2147483647) FROM outbox_dead_letter`) {
		t.Error("attempts of the dead letters")
	}
}

func TestAnExistingDeadLetterDelaysNoOther(t *testing.T) {
	f := newFixture(t)
	f.Plain(2)
	m := f.read(0)
	f.settle(dead(m[0], false))
	f.Exec(`INSERT INTO outbox (id, message_id, routing_key, payload) SELECT id, message_id, routing_key, payload FROM outbox_dead_letter`)
	again := f.read(0)
	equal(t, "done", settledIDs(f.settle(dead(again[0], false), dead(again[1], false)).Done), []int64{1, 2})
	equal(t, "left", f.IDs("true"), []int64{})
	if n := tabletest.One[int](f, `SELECT count(*)::int FROM outbox_dead_letter`); n != 2 {
		t.Errorf("%d dead letters", n)
	}
}

// The row stays in the outbox, and its settlement fails.
func TestAUniqueKeyOfDeadLettersLosesNoMessage(t *testing.T) {
	f := newFixture(t)
	f.Plain(2)
	f.Exec(`CREATE UNIQUE INDEX once ON outbox_dead_letter (routing_key)`)
	m := f.read(0)
	f.settle(dead(m[0], true))
	_, err := f.store.Settle(t.Context(), []outbox.Settlement{dead(m[1], true)})
	if pgcode.Class(err) != pgcode.ConstraintViolation {
		t.Errorf("error %v", err)
	}
	equal(t, "left", f.IDs("true"), []int64{2})
}

// Without Tried, another relay has moved the row.
func TestADeadLetterMovedByAnUnansweredTryIsDone(t *testing.T) {
	f := newFixture(t)
	f.Plain(1)
	row := dead(f.read(0)[0], true)
	f.settle(row)
	equal(t, "gone", settledIDs(f.settle(row).Gone), []int64{1})
	row.Tried = true
	equal(t, "done", settledIDs(f.settle(row).Done), []int64{1})
}

// It must not count as deleted.
func TestARowKeptByATriggerIsNamedEvenIfOtherWritesFail(t *testing.T) {
	f := newFixture(t)
	f.Plain(2)
	f.Exec(`CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	f.Exec(`CREATE TRIGGER keep BEFORE DELETE ON outbox FOR EACH ROW WHEN (OLD.id = 1) EXECUTE FUNCTION keep()`)
	f.Exec(`ALTER TABLE outbox_dead_letter ADD CONSTRAINT none CHECK (false) NOT VALID`)
	m := f.read(0)
	settled, err := f.store.Settle(t.Context(), []outbox.Settlement{deleted(m[0]), dead(m[1], true)})
	if pgcode.Class(err) != pgcode.ConstraintViolation {
		t.Fatalf("error %v", err)
	}
	equal(t, "kept", settledIDs(settled.Kept), []int64{1})
	equal(t, "gone", settledIDs(settled.Gone), []int64{})
}

// If its statement must be repeated, the others are not settled twice.
func TestAFormerlyLockedRowIsSettledSeparately(t *testing.T) {
	f := newFixture(t, "TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
	f.Plain(2)
	m := f.read(0)
	locked := dead(m[1], true)
	locked.Locked, locked.Decision.Detail = true, "nack: \u2603"
	settled := f.settle(dead(m[0], true), locked)
	equal(t, "done", settledIDs(settled.Done), []int64{1, 2})
	equal(t, "gone", settledIDs(settled.Gone), []int64{})
}

// Another relay asks with the same lock, and is no caller.
func TestSettleSeesCallersOfAwait(t *testing.T) {
	f := newFixture(t)
	_, err := migrations.MakeFunctions(t.Context(), f.Conn, tabletest.Name())
	must(t, err)
	f.Plain(8)
	rows := f.read(0)
	settle := func(want bool, one outbox.Settlement) {
		t.Helper()
		if settled := f.settle(one); len(settled.Done) != 1 || settled.Awaited != want {
			t.Errorf("%+v, want awaited %t", settled, want)
		}
	}
	caller, relay := tabletest.Connect(t, f.URL), tabletest.Connect(t, f.URL)
	tabletest.Run(t, relay, "BEGIN; SELECT pg_advisory_xact_lock_shared(hashtextextended('cdc-relay await', 'outbox'::regclass::oid::bigint))")
	settle(false, deleted(rows[0]))
	tabletest.Run(t, relay, "COMMIT")
	answer := make(chan error, 1)
	go func() {
		_, err := caller.Exec(t.Context(), "SELECT outbox_await(message_id, '1 h') FROM outbox WHERE id = 8")
		answer <- err
	}()
	await.Until(t, "a caller waits", func() bool {
		return tabletest.One[bool](f, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = $1)`, caller.PgConn().PID())
	})
	settle(true, deleted(rows[1]))
	settle(true, retried(rows[2], time.Hour))
	settle(true, dead(rows[3], true))
	distant := *rows[5]
	distant.ID += 1 << 40
	if settled := f.settle(deleted(rows[5]), deleted(&distant)); !settled.Awaited {
		t.Errorf("distant ids: %+v", settled)
	}
	settle(true, deleted(rows[7]))
	must(t, await.Receive(t, "the answer", answer))
	settle(false, deleted(rows[6]))
}

// No retry is later than its limit, even if the server's clock was ahead when it got its time. Rows that were never
// rejected are scheduled.
func TestLateRetriesBecomeDue(t *testing.T) {
	f := newFixture(t)
	row := func(attempts int, at string) int64 {
		return f.Insert(`(routing_key, payload, attempts, available_at) VALUES ('r', '1', $1::int, $2::timestamptz)`, attempts, at)
	}
	in := func(d time.Duration) string { return time.Now().Add(d).Format(time.RFC3339Nano) }
	late, later, another := row(1, in(400*24*time.Hour)), row(7, "294276-12-31 23:59:59+00"), row(1, in(3*time.Hour))
	row(0, in(400*24*time.Hour))
	row(1, in(30*time.Minute))
	row(1, "infinity")
	n, err := f.store.HastenRetries(t.Context(), time.Hour)
	if n != 3 || err != nil {
		t.Errorf("%d retries were made due: %v", n, err)
	}
	equal(t, "due", f.IDs(`available_at <= now() AND possible_duplicate`), []int64{late, later, another})
	if n, err = f.store.HastenRetries(t.Context(), time.Hour); n != 0 || err != nil {
		t.Errorf("%d retries are still late: %v", n, err)
	}
}

// Covers every kind of lock, with the SQL that ends it.
func TestLockerNamesTheLockingSession(t *testing.T) {
	for name, sql := range map[string]string{
		"FOR UPDATE":     `SELECT FROM outbox WHERE id = 1 FOR UPDATE`,
		"FOR KEY SHARE":  `SELECT FROM outbox WHERE id = 1 FOR KEY SHARE`,
		"UPDATE":         `UPDATE outbox SET routing_key = 'other' WHERE id = 1`,
		"in a savepoint": `SAVEPOINT s; DELETE FROM outbox WHERE id = 1`,
		"a relay":        `SELECT FROM outbox WHERE id = 1 FOR UPDATE; SET application_name = 'cdc-relay'`,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.Plain(2)
			other, err := f.Conn.Begin(t.Context()) // open, but locks nothing
			must(t, err)
			defer other.Rollback(t.Context()) //nolint:errcheck // the test is over
			locks := tabletest.Connect(t, f.URL)
			tabletest.Run(t, locks, `SET application_name = 'a report'; BEGIN; `+sql)
			pid := strconv.Itoa(int(locks.PgConn().PID()))
			found := f.store.Locker(t.Context(), 1)
			if !strings.HasPrefix(found.What, "row 1 is locked by Postgres process "+pid+" (") || !strings.Contains(found.What, ", idle in transaction, ") {
				t.Errorf("the text is %q, want session %s", found.What, pid)
			}
			want := "SELECT pg_catalog.pg_terminate_backend(" + pid + ");  -- as an administrator; its uncommitted work is lost"
			if name == "a relay" { // its message would leave again, unmarked
				want = "# wait"
			}
			if !strings.HasPrefix(found.Fix, want) {
				t.Errorf("the hint is %q, want %s", found.Fix, want)
			}
			if free := f.store.Locker(t.Context(), 2); free.What != "row 2 is locked" {
				t.Errorf("for an unlocked row: %q", free.What)
			}
		})
	}
}
