package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// The slot of a running relay is dropped. The relay recreates it and scans the table for missed rows. One process
// publishes nothing twice.
func TestADroppedSlotLosesAndDuplicatesNothing(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	r := w.run()
	load := w.write(2)
	for range 2 {
		load.more(500)
		w.eventually("the slot is dropped", func() bool {
			_ = w.tryExec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, w.slot)
			return w.tryExec(`SELECT pg_drop_replication_slot($1)`, w.slot) == nil
		})
		load.more(200)
		within(t, "streaming again", 5*time.Second, w.streamed)
	}
	load.more(200)
	load.allArrive(arrived, 0)
	r.noRejections()
	if !strings.Contains(r.logs(), "slot_created") {
		t.Error("the log does not say that the slot was created")
	}
}

// The relay or a person creates it again.
func TestADroppedPublicationLosesAndDuplicatesNothing(t *testing.T) {
	t.Parallel()
	for name, recreate := range map[string]bool{"made by the relay": false, "made by a person": true} {
		t.Run(name, func(t *testing.T) {
			if recreate {
				services.Thorough(t, "the relay recreates the slot in the quick run")
			}
			t.Parallel()
			w, arrived := consuming(t)
			r := w.run()
			load := w.write(2)
			load.more(500)
			w.exec(`DROP PUBLICATION ` + w.slot)
			load.more(200)
			if recreate {
				_ = w.tryExec(`CREATE PUBLICATION ` + w.slot + ` FOR TABLE outbox`) // the relay may have created it first
			}
			w.eventually("rows are streamed again", func() bool {
				return r.metric("cdc_relay_slot_held") == 1 &&
					value[bool](w, `SELECT EXISTS (SELECT 1 FROM pg_publication_tables WHERE pubname = $1)`, w.slot)
			})
			load.more(500)
			load.allArrive(arrived, 0)
			r.noRejections()
		})
	}
}

// It takes over at once when the leader stops, and soon when it is killed.
func TestAStandbyTakesOverFromAStoppedOrKilledLeader(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	const inFlight = 200
	streams := w.run("--max-in-flight", "200")
	w.eventually("the first streams", func() bool { return streams.metric("cdc_relay_slot_held") == 1 })
	load := w.write(2)
	duplicates := 0
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGTERM} {
		standby := w.run("--max-in-flight", "200")
		w.eventually("the second is a standby", func() bool {
			page, status := standby.get("/readyz")
			return status == 200 && strings.HasPrefix(page, "ready (standby)\n")
		})
		load.more(500)
		streams.signal(end)
		within(t, "taking over after "+end.String(), 3*time.Second, func() {
			w.eventually("the second takes over", func() bool { return standby.metric("cdc_relay_slot_held") == 1 })
		})
		if code := streams.exit(); end == syscall.SIGTERM && code != 0 {
			t.Errorf("exit code %d after SIGTERM", code)
		}
		if end == syscall.SIGKILL {
			duplicates += inFlight
		}
		load.more(500)
		streams = standby
	}
	load.allArrive(arrived, duplicates)
	streams.noRejections()
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
	load.allCommittedArrive(arrived, 400)
	arrived.allMarked()
	other.noRejections()
	paused.noRejections()
}

// All its connections are half open: it hears nothing, and the server hears nothing of it.
func TestALeaderCutOffFromPostgresIsReplaced(t *testing.T) {
	services.Thorough(t, "a paused leader is replaced in the quick run")
	t.Parallel()
	p := newProxied(t)
	arrived := p.consume(p.queue)
	leader := p.run("--max-in-flight", "200")
	p.eventually("the relay streams", leader.ready)
	p.settings = append(p.settings, "CDC_RELAY_DATABASE_URL="+p.database)
	other := p.run("--max-in-flight", "200")
	p.eventually("the other is a standby", other.standsBy)
	load := p.write(2)
	load.more(300)
	p.postgres.BlackHole()
	within(t, "taking over from the leader", 6*time.Second, func() {
		p.eventually("the other takes over", func() bool { return other.metric("cdc_relay_slot_held") == 1 })
	})
	load.more(2000)
	p.postgres.Resume()
	p.eventually("the old leader is a standby", leader.standsBy)
	load.more(200)
	load.allCommittedArrive(arrived, 600)
	arrived.allMarked()
	leader.noRejections()
	other.noRejections()
}
