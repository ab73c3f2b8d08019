package bench

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// That is autovacuum and checkpoints. The settings of the user stay.
func TestServerMaintenanceRunsOnlyInLongRuns(t *testing.T) {
	server := services.PrivatePostgres(t, ownSettings([]string{"autovacuum_naptime=7s"})...)
	site := &Site{Postgres: server}
	session, err := pgx.Connect(t.Context(), server.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(session)
	for _, one := range []struct {
		clock            bool
		timeout, walSize string
	}{
		{false, "1h", "16GB"},
		{true, "5min", "1GB"},
		{false, "1h", "16GB"},
	} {
		if err := site.byClock(t.Context(), one.clock); err != nil {
			t.Fatal(err)
		}
		awaitSetting(t, session, "checkpoint_timeout", one.timeout)
		awaitSetting(t, session, "max_wal_size", one.walSize)
		awaitSetting(t, session, "autovacuum_naptime", "7s")
	}
}

// awaitSetting waits for a setting: a session applies it a moment after the reload.
func awaitSetting(t *testing.T, session *pgx.Conn, name, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Hang())
	defer cancel()
	for is := ""; is != want; {
		if err := session.QueryRow(ctx, "SHOW "+name).Scan(&is); err != nil {
			t.Fatalf("%s is %q, want %q: %v", name, is, want, err)
		}
	}
}
