package store_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

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
