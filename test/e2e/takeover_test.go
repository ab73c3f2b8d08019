package e2e

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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

func (w *world) leader(relays []*relay) (leader *relay) {
	w.t.Helper()
	w.eventually("a relay streams", func() bool {
		i := slices.IndexFunc(relays, func(r *relay) bool { return !r.exited() && r.metric("cdc_relay_slot_held") == 1 })
		if i >= 0 {
			leader = relays[i]
		}
		return leader != nil
	})
	return leader
}

func (w *world) runMany(n int, args ...string) []*relay {
	w.t.Helper()
	var relays []*relay
	for range n {
		relays = append(relays, w.run(args...))
	}
	w.oneStreams(relays)
	return relays
}

func (w *world) oneStreams(relays []*relay) {
	w.t.Helper()
	w.eventually("one streams and the others are standbys", func() bool {
		streaming, standing := 0, 0
		for _, r := range relays {
			switch {
			case r.says("/readyz", "ready (streaming)\n"):
				streaming++
			case r.standsBy():
				standing++
			}
		}
		return streaming == 1 && standing == len(relays)-1
	})
}

// One streams. If it stops or is killed, another one takes over: deliveries pause for less than two seconds, and nothing
// is lost.
func TestManyRelaysShareOneSlot(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	args := []string{"--max-in-flight", "200", "--poll-interval", "100ms"}
	relays := w.runMany(sized(3, 10), args...)
	load := w.write(2)
	load.more(500)
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGTERM} {
		leader := w.leader(relays)
		load.more(200)
		began := time.Now()
		leader.signal(end)
		if code := leader.exit(); end == syscall.SIGTERM && code != 0 {
			t.Errorf("exit code %d after SIGTERM", code)
		}
		marker := w.insert(nil)
		load.also([]string{marker})
		w.await(arrived, marker)
		inTime(t, "a delivery after "+end.String(), time.Since(began), 2*time.Second)
		load.more(500)
		relays[slices.Index(relays, leader)] = w.run(args...)
		w.oneStreams(relays)
	}
	load.more(200)
	load.allArrive(arrived, 200)
	for _, r := range relays {
		r.noRejections()
	}
}

// replicated is a primary with a standby that has every acknowledged commit.
type replicated struct {
	world            *world // its URL names both
	primary, standby *services.Postgres
}

// newReplicated runs the statements in the database before it creates the standby.
func newReplicated(t *testing.T, statements ...string) *replicated {
	t.Helper()
	p := &replicated{primary: services.PrivatePostgres(t)}
	must(t, "make a database", p.primary.Exec(t.Context(), "", `CREATE DATABASE app`))
	must(t, "prepare the database", p.primary.Exec(t.Context(), "app", statements...))
	p.standby = services.Standby(t, p.primary)
	must(t, "wait for the standby at each commit", p.primary.Exec(t.Context(), "",
		`ALTER SYSTEM SET synchronous_standby_names = 'standby'`, `SELECT pg_reload_conf()`))
	both, err := url.Parse(p.primary.URL("app"))
	must(t, "read the address", err)
	both.Host += "," + p.standby.Addr()
	both.RawQuery += "&target_session_attrs=read-write"
	p.world = newWorldOn(t, both.String(), services.VHost(t))
	return p
}

func (p *replicated) failOver(t *testing.T) {
	t.Helper()
	must(t, "kill the primary", p.primary.Kill(t.Context()))
	must(t, "promote", p.standby.Promote(t.Context()))
	p.world.db.Reset()
}

func (p *replicated) onStandby(t *testing.T, what, sql string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), p.standby.URL("app"))
	must(t, "connect to the standby", err)
	defer conn.Close(t.Context())
	p.world.eventually(what, func() bool {
		var yes bool
		must(t, "ask the standby", conn.QueryRow(t.Context(), sql, args...).Scan(&yes))
		return yes
	})
}

// promoted expects that nothing is lost when the standby is promoted under load, after it has what is awaited.
func (p *replicated) promoted(t *testing.T, awaited func()) *relay {
	t.Helper()
	w := p.world.setUp()
	arrived := w.consume(w.queue)
	r := w.run("--max-in-flight", "500")
	load := w.write(2)
	load.more(500)
	awaited()
	p.failOver(t)
	within(t, "streaming again", 5*time.Second, w.streamed)
	load.more(500)
	load.allArrive(arrived, 500)
	r.noRejections()
	return r
}

// Without a failover slot the new primary has no slot, and the relay creates one.
func TestMessagesSurviveAPromotionOfTheStandby(t *testing.T) {
	t.Parallel()
	r := newReplicated(t).promoted(t, func() {})
	if n := strings.Count(r.logs(), "slot_created"); n != 1 {
		t.Errorf("the log says %d times that the slot was created", n)
	}
}

// The relay uses a failover slot that a DBA created (Postgres 17 and later) as it is.
func TestTheRelayContinuesWithTheStandbysFailoverSlot(t *testing.T) {
	services.Thorough(t, "a standby is promoted in the quick run")
	t.Parallel()
	if services.SharedPostgres(t).Major() < 17 {
		t.Skip("failover slots came with Postgres 17")
	}
	slot := services.Name(t)
	p := newReplicated(t, fmt.Sprintf(`SELECT pg_create_logical_replication_slot('%s', 'pgoutput', false, false, true)`, slot))
	p.world.slot = slot
	must(t, "hold the slot back for the standby", p.primary.Exec(t.Context(), "",
		`ALTER SYSTEM SET synchronized_standby_slots = 'standby'`, `SELECT pg_reload_conf()`))
	r := p.promoted(t, func() {
		p.onStandby(t, "the standby has the slot", `SELECT count(*) > 0 FROM pg_replication_slots
			WHERE slot_name = $1 AND synced AND NOT temporary AND invalidation_reason IS NULL`, slot)
	})
	if logs := r.logs(); strings.Contains(logs, "slot_created") || strings.Contains(logs, "slot_dropped") {
		t.Error("the slot was recreated")
	}
	if !value[bool](p.world, `SELECT failover AND active FROM pg_replication_slots WHERE slot_name = $1`, slot) {
		t.Error("the slot is not a failover slot any more")
	}
}
