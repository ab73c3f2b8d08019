package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// Its transaction had committed, so it is not streamed, but waited for a standby, so no query could see it.
func TestARowInvisibleAtStreamStartLeavesOnceVisible(t *testing.T) {
	services.Thorough(t, "starts its own server")
	t.Parallel()
	server := services.PrivatePostgres(t)
	must(t, "make a database", server.Exec(t.Context(), "", `CREATE DATABASE app`))
	w := newWorldOn(t, server.URL("app"), services.VHost(t)).setUp()
	arrived := w.consume(w.queue)
	release := server.StallCommits(t)
	for _, key := range []any{nil, "k"} {
		go func() {
			_, _ = w.db.Exec(context.WithoutCancel(t.Context()), `INSERT INTO outbox (routing_key, ordering_key, payload) VALUES ($1, $2, '{}')`, w.queue, key)
		}()
	}
	w.eventually("both commits wait", func() bool {
		return value[int](w, `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()`) == 2
	})
	r := w.run()
	w.eventually("the relay streams", func() bool { return r.says("/readyz", "ready (streaming)\n") })
	w.eventually("the relay has read the table", func() bool {
		return value[int64](w, `SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'outbox_pkey'`) > 0
	})
	if n := arrived.distinct(); n != 0 {
		t.Fatalf("%d invisible rows have arrived", n)
	}
	release()
	within(t, "publishing them", 3*time.Second, func() {
		w.eventually("both arrive", func() bool { return arrived.distinct() == 2 })
	})
}
