package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// Every role may hold every advisory lock. None stops setup, or the deletion of the history.
func TestNoAdvisoryLockStopsTheOwner(t *testing.T) {
	url := services.Database(t)
	conn, stranger := tabletest.Connect(t, url), tabletest.Connect(t, url)
	exec1(t, stranger, "SELECT pg_advisory_lock(7161958354269858913)") // that of earlier versions
	up(t, conn, tabletest.Name())
	_, err := migrations.MakeHistory(t.Context(), conn, tabletest.Name())
	must(t, err)
	exec1(t, stranger, "SELECT pg_advisory_lock(hashtextextended('cdc-relay history', 'outbox_published'::regclass::oid::bigint))")
	exec1(t, conn, "CREATE TABLE outbox_p20200101 PARTITION OF outbox_published FOR VALUES FROM ('2020-01-01Z') TO ('2020-01-02Z')")
	is(t, conn, 1, "SELECT outbox_rotate(interval '1 h')")
}

// Nothing to do needs no lock. Otherwise, a session that stays in a transaction is named.
func TestASessionThatBlocksSetupIsNamed(t *testing.T) {
	services.Thorough(t, "it waits ten seconds for a lock, twice")
	url := services.Database(t)
	conn, other := tabletest.Connect(t, url), tabletest.Connect(t, url)
	blocks := func(lock string) {
		t.Helper()
		exec1(t, other, "SET application_name = 'a migration'; BEGIN; "+lock)
		_, _, err := migrations.Up(t.Context(), conn, tabletest.Name())
		pid := other.PgConn().PID()
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("is locked by Postgres process %d (postgres, a migration, idle in transaction, ", pid)) ||
			!strings.HasPrefix(problem.Hint(err), fmt.Sprintf("SELECT pg_catalog.pg_terminate_backend(%d);", pid)) {
			t.Errorf("%s: got %v, hint %q", lock, err, problem.Hint(err))
		}
		exec1(t, other, "ROLLBACK")
	}
	blocks("CREATE TABLE outbox_migrations (version int)")
	up(t, conn, tabletest.Name())
	exec1(t, other, "BEGIN; LOCK TABLE outbox_migrations IN EXCLUSIVE MODE")
	up(t, conn, tabletest.Name())
	exec1(t, other, "ROLLBACK")
	exec1(t, conn, "DELETE FROM outbox_migrations; DROP TABLE outbox, outbox_dead_letter")
	blocks("LOCK TABLE outbox_migrations IN EXCLUSIVE MODE")
	up(t, conn, tabletest.Name())
}
