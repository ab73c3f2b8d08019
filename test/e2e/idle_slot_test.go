package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// Postgres 18 invalidates the slot of a stopped relay, but not of a running one.
func TestASlotInvalidatedWhileIdleIsRecreated(t *testing.T) {
	services.Thorough(t, "a dropped slot is replaced in the quick run")
	if services.SharedPostgres(t).Major() < 18 {
		t.Skip("Postgres invalidates idle slots since version 18")
	}
	t.Parallel()
	server := services.PrivatePostgres(t, "idle_replication_slot_timeout=1s")
	w := newWorldOn(t, server.Database(t), services.VHost(t)).setUp()
	arrived := w.consume(w.queue)
	ids := []string{w.insert(nil)}
	r := w.run()
	w.await(arrived, ids[0])
	if code := r.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	ids = append(ids, w.insert(nil), w.insert(row{"ordering_key": "k"}), w.insert(row{"ordering_key": "k"}))
	w.eventually("the slot is invalidated", func() bool {
		w.exec(`CHECKPOINT`)
		return value[bool](w, `SELECT coalesce(invalidation_reason = 'idle_timeout', false) FROM pg_replication_slots WHERE slot_name = $1`, w.slot)
	})
	again := w.run()
	for _, id := range append(ids, w.insert(nil)) {
		w.await(arrived, id)
	}
	within(t, "streaming", 10*time.Second, w.streamed)
	w.exec(`CHECKPOINT`)
	w.await(arrived, w.insert(nil))
	w.emptied()
	noDuplicates(t, arrived)
	if !strings.Contains(again.logs(), "invalidated by the server idle_timeout") {
		t.Error("the log does not say why the slot was recreated")
	}
}
