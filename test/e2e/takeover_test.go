package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// The slot of a running relay is dropped, and then its publication. The relay creates them again, and scans the table for
// missed rows. One process publishes nothing twice.
func TestADroppedSlotOrPublicationLosesAndDuplicatesNothing(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	r := w.run()
	load := w.write(2)
	for _, drop := range []func(){
		func() {
			w.eventually("the slot is dropped", func() bool {
				_ = w.tryExec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, w.slot)
				return w.tryExec(`SELECT pg_drop_replication_slot($1)`, w.slot) == nil
			})
		},
		func() { w.exec(`DROP PUBLICATION ` + w.slot) },
	} {
		load.more(500)
		drop()
		load.more(200)
		w.eventually("the publication is there", func() bool {
			return value[bool](w, `SELECT EXISTS (SELECT FROM pg_publication_tables WHERE pubname = $1)`, w.slot)
		})
		within(t, "streaming again", 5*time.Second, w.streamed)
	}
	load.more(200)
	load.allArrive(arrived, 0)
	r.noRejections()
	if !strings.Contains(r.logs(), "slot_created") {
		t.Error("the log does not say that the slot was created")
	}
}

// The server ends the session of a frozen leader. The leader becomes a standby when it resumes. Everything that it had
// read before leaves only with the mark. The relays have the grants of getting-started.md.
func TestAPausedLeaderSendsOnlyMarkedMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	w.asRelay()
	arrived := w.consume(w.queue)
	paused := w.run("--max-in-flight", "200")
	other := w.run("--max-in-flight", "200")
	load := w.write(2)
	load.more(500)
	paused.signal(syscall.SIGSTOP)
	t.Cleanup(func() { paused.signal(syscall.SIGCONT) })
	within(t, "taking over from the frozen leader", 6*time.Second, func() {
		w.eventually("the other takes over", func() bool { return other.metric("cdc_relay_slot_held") == 1 })
	})
	load.more(500)
	paused.signal(syscall.SIGCONT)
	w.eventually("the paused relay is a standby", paused.standsBy)
	load.more(200)
	load.allArrive(arrived, 400)
	other.noRejections()
	paused.noRejections()
}

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

// A standby that can publish takes the lead, and the old leader does not take it back.
func TestALeaderCutOffFromTheBrokerHandsOver(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	one, broker := w.behindBroker()
	leader := one.run("--max-in-flight", "200")
	w.eventually("the relay streams", func() bool { return leader.metric("cdc_relay_slot_held") == 1 })
	other := w.run("--max-in-flight", "200")
	w.eventually("the other is a standby", other.standsBy)
	load := w.write(2)
	load.more(200)
	broker.Refuse()
	broker.Cut()
	within(t, "handing over", 10*time.Second, func() {
		w.eventually("the other relay is the leader", func() bool { return other.metric("cdc_relay_slot_held") == 1 })
	})
	load.more(200)
	broker.Accept()
	w.eventually("the first relay is a standby, and could publish", leader.standsBy)
	load.more(200)
	if other.metric("cdc_relay_slot_held") != 1 {
		t.Error("the lead has moved back")
	}
	load.allArrive(arrived, 400)
	leader.noRejections()
	other.noRejections()
}
