package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// The server reports it only when it streams. Files copied by hand, or rewound, can cause it, and a race in the server
// (ReplicationSlotsComputeRequiredLSN).
func TestASlotWithMissingWALIsRecreated(t *testing.T) {
	services.Thorough(t, "a dropped slot is replaced in the quick run")
	t.Parallel()
	server := services.PrivatePostgres(t)
	w := newWorldOn(t, server.Database(t), services.VHost(t)).setUp()
	segment := filepath.Join(value[string](w, `SHOW data_directory`), "pg_wal",
		value[string](w, `SELECT pg_walfile_name(restart_lsn) FROM pg_replication_slots WHERE slot_name = $1`, w.slot))
	if _, err := os.Stat(segment); err != nil {
		t.Skip("the server's files are out of reach: ", err)
	}
	for range 2 {
		w.exec(`SELECT pg_switch_wal() FROM pg_logical_emit_message(true, 'other', 'x')`)
		w.exec(`CHECKPOINT`)
	}
	must(t, "remove the segment", os.Remove(segment))
	arrived := w.consume(w.queue)
	ids := []string{w.insert(nil), w.insert(row{"ordering_key": "k"}), w.insert(row{"ordering_key": "k"})}
	r := w.run()
	for _, id := range ids {
		w.await(arrived, id)
	}
	within(t, "streaming", 20*time.Second, w.streamed)
	w.await(arrived, w.insert(nil))
	w.emptied()
	noDuplicates(t, arrived)
	if logs := r.logs(); !strings.Contains(logs, "dropped slot "+w.slot+": its WAL is gone") {
		t.Errorf("the log does not say that the slot was dropped:\n%s", logs)
	}
}
