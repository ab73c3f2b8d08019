package relay

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/fallback"
	"github.com/cdc-relay/cdc-relay/internal/await"
	"github.com/cdc-relay/cdc-relay/internal/services"
)

// TestARowThatNobodySeesYet: it committed before the stream began, and waits for a synchronous
// standby to become visible. No later transaction has ended, so that no snapshot names it.
// The relay notices when it appears, and not only when it looks through the table anyway.
func TestARowThatNobodySeesYet(t *testing.T) {
	t.Parallel()
	services.Thorough(t, "starts a server of its own")
	server := services.PrivatePostgres(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(server.Exec(t.Context(), "", `CREATE DATABASE app`, `ALTER DATABASE app SET synchronous_commit = 'local'`))
	i := newInstanceOn(t, server.URL("app"))
	r, stop := i.start() // makes the slot, which would wait for the transaction below
	i.await("a stream and a look through the table", func() bool { return hasLooked(r.core) })
	stop()
	release := server.StallCommits(t)

	writer, err := pgx.Connect(t.Context(), server.URL("app"))
	must(err)
	_, err = writer.Exec(t.Context(), `SET synchronous_commit = 'on'`)
	must(err)
	visible := make(chan error, 1)
	go func() {
		_, err := writer.Exec(t.Context(), `INSERT INTO outbox (routing_key, payload) VALUES ($1, '{}')`, i.queue)
		visible <- err
	}()
	i.await("the commit waits for the standby", func() bool {
		var waits bool
		must(i.db.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE wait_event = 'SyncRep' AND datname = current_database())`).Scan(&waits))
		return waits
	})

	r, stop = i.start()
	defer stop()
	i.await("a stream and a look through the table", func() bool { return hasLooked(r.core) })
	release()
	must(<-visible)
	await.Within(t, "the row leaves once it has appeared", fallback.LeftoverSafety/2, func() {
		i.await("the row", func() bool { return i.arrived() == 1 })
	})
	must(writer.Close(t.Context()))
}

// hasLooked tells whether the relay streams, and has read the table to its end.
func hasLooked(c *core) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.live && (!c.mu.leftovers || c.mu.awaited) && c.mu.spilledFrom == noSpill
}
