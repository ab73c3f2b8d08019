package e2e

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// The server waits for every open transaction before the slot is ready, and lists the slot meanwhile.
func TestRowsArePublishedWhileTheSlotIsCreated(t *testing.T) {
	services.Thorough(t, "rows leave without a stream in the quick run")
	t.Parallel()
	server := services.PrivatePostgres(t)
	w := newWorldOn(t, server.Database(t), services.VHost(t)).setUp()
	w.exec(`SELECT pg_drop_replication_slot($1)`, w.slot)
	end := w.holding(`SELECT pg_current_xact_id()`)
	arrived := w.consume(w.queue)
	r := w.start()
	w.eventually("the slot is being created", func() bool {
		return value[bool](w, `SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND active)`, w.slot)
	})
	for _, fields := range []row{nil, {"ordering_key": "k"}, {"ordering_key": "k"}} {
		w.await(arrived, w.insert(fields))
	}
	id := w.insert(row{"ordering_key": "k"})
	if out, code := w.command("drain"); code != 0 || !w.outboxEmpty() {
		t.Errorf("drain: exit %d\n%s", code, out)
	}
	w.await(arrived, id)
	end()
	within(t, "streaming", 20*time.Second, w.streamed)
	w.await(arrived, w.insert(nil))
	if n := arrived.unmarkedDuplicates(); n != 0 || r.exited() {
		t.Errorf("%d duplicates are not marked; the relay has ended: %v", n, r.exited())
	}
}
