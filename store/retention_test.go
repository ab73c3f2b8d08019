package store_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/store"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

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
