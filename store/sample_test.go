package store_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/store"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// sample repeats a sample whose queries took longer than a sample may, on a busy machine.
func (f *fixture) sample(slot string) (s store.Sample) {
	f.Helper()
	var err error
	await.Until(f, "a sample", func() bool {
		s, err = f.store.Sample(f.Context(), slot, []int64{-1})
		return err == nil && s.Rows.Valid && s.OldestPending.Valid && s.DeadLetters.Valid
	}, func() string { return fmt.Sprint(err, s) })
	return s
}

func TestSampleOfASmallQueueIsExact(t *testing.T) {
	f := newFixture(t)
	s := f.sample("no_such_slot")
	if s.Rows.Int64 != 0 || s.DeadLetters.Int64 != 0 || s.OldestPending.Float64 != 0 || s.SlotLag.Valid || s.SlotRetained.Valid {
		t.Errorf("an empty outbox: %+v", s)
	}
	f.Insert(`(routing_key, payload, created_at, available_at) VALUES ('later', '1', now() - interval '3 days', now() + interval '1 hour')`)
	f.Insert(`(routing_key, payload, created_at) VALUES ('strange', '1', '-infinity')`)
	if s := f.sample("no_such_slot"); s.Rows.Int64 != 2 || s.OldestPending.Float64 != 0 {
		t.Errorf("rows of which none is pending: %+v", s)
	}
	f.Insert(`(routing_key, payload, created_at) VALUES ('fresh', '1', now() - interval '1 minute')`)
	f.Insert(`(routing_key, payload, created_at) VALUES ('fresher', '1', now())`)
	if s := f.sample("no_such_slot"); s.Rows.Int64 != 4 || int(s.OldestPending.Float64)/60 != 1 {
		t.Errorf("with a pending row of a minute: %+v", s)
	}
	f.Insert(`(routing_key, payload, created_at, available_at, attempts) VALUES ('due', '1', now() - interval '2 hours', now() - interval '1 hour', 3)`)
	f.Insert(`(id, routing_key, payload, created_at) OVERRIDING SYSTEM VALUE VALUES (-1, 'published, not deleted', '1', now() - interval '1 day')`)
	f.Exec(`INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, failure_reason, payload)
		SELECT i, now(), gen_random_uuid(), 5, 1, 'r', 'nack', '1' FROM generate_series(1, 7) i`)
	if s := f.sample("no_such_slot"); s.Rows.Int64 != 6 || s.DeadLetters.Int64 != 7 || int(s.OldestPending.Float64)/3600 != 1 {
		t.Errorf("with a retry that has been due for an hour, and dead letters: %+v", s)
	}
}

func TestSampleOfALargeQueueIsEstimated(t *testing.T) {
	f := newFixture(t)
	const rows = 30_000
	f.Plain(rows)
	// ANALYZE before the server has counted the insert would count its rows twice.
	var got int64
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		f.Exec(`ANALYZE outbox`)
		if got = f.sample("no_such_slot").Rows.Int64; got > rows*8/10 && got < rows*12/10 {
			return
		}
	}
	t.Errorf("%d rows, want about %d", got, rows)
}

func TestSampleMeasuresTheLagOfTheSlot(t *testing.T) {
	f := newFixture(t)
	slot := services.Name(t)
	f.Exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, slot)
	t.Cleanup(func() {
		if _, err := f.Conn.Exec(context.Background(), `SELECT pg_drop_replication_slot($1)`, slot); err != nil {
			t.Error(err)
		}
	})
	before := f.sample(slot)
	f.Plain(1000)
	after := f.sample(slot)
	if grown := after.SlotLag.Int64 - before.SlotLag.Int64; grown < 100_000 || after.SlotRetained.Int64 < after.SlotLag.Int64 {
		t.Errorf("before %+v, and after a thousand rows %+v", before, after)
	}
}

// The next user of the connection has the usual timeouts.
func TestSampleRestoresTheTimeouts(t *testing.T) {
	f := newFixture(t)
	f.sample("no_such_slot")
	err := f.store.Conn(t.Context(), func(conn *pgx.Conn) error {
		var timeout string
		if err := conn.QueryRow(t.Context(), "SHOW statement_timeout").Scan(&timeout); err != nil {
			return err
		}
		if timeout != "0" {
			t.Errorf("statement_timeout is %s", timeout)
		}
		return nil
	})
	must(t, err)
}

// A locked table delays a sample only for a moment.
func TestSampleDoesNotWaitForALock(t *testing.T) {
	f := newFixture(t)
	defer tabletest.End(t, tabletest.Begin(t, f.Conn, `LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE`).Rollback)
	began := time.Now()
	if s, err := f.store.Sample(t.Context(), "no_such_slot", nil); err == nil && s.OldestPending.Valid {
		t.Errorf("got %+v of a locked table", s)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
}

// The error of a statement that has waited for a lock names the session that holds it, and how to end it.
func TestALockedTableNamesTheSession(t *testing.T) {
	f := newFixture(t)
	const lock = `SET LOCAL application_name = 'a migration'; LOCK TABLE outbox IN EXCLUSIVE MODE`
	defer tabletest.End(t, tabletest.Begin(t, f.Conn, lock).Rollback)
	_, failed := tabletest.Connect(t, f.URL).Exec(t.Context(), `SET lock_timeout = '50ms'; DELETE FROM outbox`)
	err, gone := f.store.Explain(t.Context(), failed)
	want := fmt.Sprintf("public.outbox is locked by Postgres process %d (postgres, a migration, idle in transaction, ", f.Conn.PgConn().PID())
	if gone || err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(problem.Hint(err), "pg_terminate_backend(") {
		t.Errorf("got %v (%s)", err, problem.Hint(err))
	}
}
