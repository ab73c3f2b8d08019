package e2e

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// loseSlotWhilePublishing makes a leader lose the slot while 100 messages wait in its publisher for an exchange check,
// because the broker answers late. The leader does not get the slot back. The other relay begins to wait for the slot
// before.
func (w *world) loseSlotWhilePublishing(leader *behindProxies, other func()) {
	w.t.Helper()
	w.eventually("the relay streams", func() bool { return leader.metric("cdc_relay_slot_held") == 1 })
	other()
	exchange := services.Name(w.t)
	w.bindExchange(exchange, "fanout", w.queue, "")
	leader.broker.Delay(180*time.Millisecond, services.Downstream)
	w.exec(`INSERT INTO outbox (exchange, routing_key, payload) SELECT $1, $2, '{}' FROM generate_series(1, 100)`, exchange, w.queue)
	leader.inFlight(100)
	leader.postgres.Refuse()
	w.exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, w.slot)
}

// runBehindProxies starts a relay with its own proxies.
func (w *world) runBehindProxies(args ...string) *behindProxies {
	w.t.Helper()
	one, postgres := w.behindItsOwnProxy()
	broker, address := through(w.t, w.broker)
	one.settings = append(one.settings, "CDC_RELAY_AMQP_URL="+address)
	return &behindProxies{one.run(args...), postgres, broker}
}

// That relay may still send what it has received, without the mark.
func TestDrainWaitsForTheRelayThatLostTheSlot(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	// A locked row keeps the drain waiting, and has a higher id than all later rows.
	w.exec(`INSERT INTO outbox (id, routing_key, payload) OVERRIDING SYSTEM VALUE VALUES (1000000, $1, '{}')`, w.queue)
	unlock := w.holding(`SELECT FROM outbox FOR UPDATE`)
	leader := w.runBehindProxies()
	type ended struct {
		output string
		code   int
	}
	drained := make(chan ended, 1)
	w.loseSlotWhilePublishing(leader, func() {
		const pids = `SELECT coalesce(array_agg(pid), '{}') FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'cdc-relay'`
		others := value[[]int32](w, pids)
		go func() {
			output, code := w.command("drain")
			drained <- ended{output, code}
		}()
		w.eventually("the drain sees the locked row", func() bool {
			return len(value[[]int32](w, pids+` AND query LIKE '%ordering_key%' AND pid <> ALL ($1)`, others)) > 0
		})
	})
	w.eventually("100 messages arrive", func() bool { return arrived.distinct() == 100 })
	unlock()
	if end := <-drained; end.code != 0 {
		t.Errorf("drain: exit %d\n%s", end.code, end.output)
	}
	leader.broker.Delay(0)
	leader.postgres.Accept()
	w.eventually("the relay has nothing in flight", func() bool { return leader.metric("cdc_relay_messages_in_flight") == 0 })
	arrived.allMarked()
}

// It takes only due rows, and all rows once no relay streams.
func TestAPollingRelayLeavesFreshRowsToTheLeader(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	leader := w.runBehindProxies()
	w.run("--mode", "poll", "--poll-interval", "10ms")
	load := w.write(2)
	load.more(2000)
	noDuplicates(t, arrived)
	w.loseSlotWhilePublishing(leader, func() {})
	load.more(2000)
	load.end()
	w.emptied()
	leader.broker.Delay(0)
	leader.postgres.Accept()
	w.eventually("the relay streams again", func() bool { return leader.metric("cdc_relay_slot_held") == 1 })
	w.insertMany(100)
	w.emptied()
	w.eventually("all arrives", func() bool { return load.missing(arrived) == 0 })
	leader.broker.BlackHole(services.Downstream)
	all := arrived.distinct() + 100
	w.insertMany(100)
	w.eventually("messages without a confirm have arrived", func() bool { return arrived.distinct() == all })
	leader.kill()
	w.emptied()
	arrived.allMarked()
}
