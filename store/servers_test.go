package store_test

import (
	"context"
	"net/url"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/store"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// A terminated session and a statement timeout are no restart.
func TestARestartOfTheServerIsDetected(t *testing.T) {
	server := services.PrivatePostgres(t)
	if server.PID() == 0 {
		t.Skip("the server's processes are out of reach")
	}
	admin := func(sql string, args ...any) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
		must(t, err)
		defer conn.Close(context.Background())
		tabletest.Run(t, conn, sql, args...)
	}
	admin(`CREATE ROLE plain LOGIN PASSWORD 'secret'`) // it sees little of other sessions
	address, err := url.Parse(server.URL("postgres"))
	must(t, err)
	address.User = url.UserPassword("plain", "secret")
	s := open(t, address.String(), store.Options{Table: tabletest.Name()})
	answers := func() bool { _, err := s.Snapshot(t.Context(), false); return err == nil }
	await.Until(t, "the server answers", answers)
	for _, event := range []struct {
		name    string
		happens func()
		counts  bool
	}{
		{"a session is ended", func() {
			admin(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'plain'`)
		}, false},
		{"a statement is given up", func() {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := s.Snapshot(ctx, false); err == nil {
				t.Error("a cancelled statement has succeeded")
			}
		}, false},
		{"a server process crashes", func() {
			crash(t, server)
		}, true},
		{"the server is stopped and started", func() {
			must(t, server.Restart(t.Context(), services.Fast))
		}, true},
	} {
		before := s.Restarts()
		event.happens()
		if event.counts { // the store's session may answer for a moment after others have ended
			await.Until(t, "a restart is counted: "+event.name, func() bool { return answers() && s.Restarts() > before })
			continue
		}
		await.Until(t, "the server answers", answers)
		if s.Restarts() > before {
			t.Errorf("a restart is counted: %s", event.name)
		}
	}
}

// crash kills one process of the server; the server then ends all others and recovers.
func crash(t *testing.T, server *services.Postgres) {
	t.Helper()
	victim, observer := tabletest.Connect(t, server.URL("postgres")), tabletest.Connect(t, server.URL("postgres"))
	must(t, syscall.Kill(int(victim.PgConn().PID()), syscall.SIGKILL))
	await.Until(t, "the server ends all sessions", func() bool { return observer.Ping(context.Background()) != nil })
}
