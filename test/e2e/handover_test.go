package e2e

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// behindItsOwnBrokerProxy is the same world for a relay with its own proxy to RabbitMQ.
func (w *world) behindItsOwnBrokerProxy() (*world, *services.Proxy) {
	w.t.Helper()
	proxy, address := through(w.t, w.broker)
	one := *w
	one.settings = append(one.settings[:len(one.settings):len(one.settings)], "CDC_RELAY_AMQP_URL="+address)
	return &one, proxy
}

// A standby that can publish takes the lead, and the old leader does not take it back.
func TestALeaderCutOffFromTheBrokerHandsOver(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	one, broker := w.behindItsOwnBrokerProxy()
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

func TestTheLeaderKeepsTheSlotWhileTheBrokerIsDownForAll(t *testing.T) {
	services.Thorough(t, "waits for twenty seconds")
	t.Parallel()
	w, arrived := consuming(t)
	one, broker := w.behindItsOwnBrokerProxy()
	relays := one.runMany(2, "--max-in-flight", "200")
	leader := w.leader(relays)
	load := w.write(2)
	load.more(200)
	broker.Refuse()
	broker.Cut()
	since := time.Now()
	w.eventually("the broker is down for long", func() bool {
		if n := len(linesWith(leader.logs(), "slot_handed_over")); n != 0 {
			t.Fatalf("the leader has handed over %d times", n)
		}
		return time.Since(since) > 20*time.Second
	})
	broker.Accept()
	load.more(200)
	load.allArrive(arrived, 400)
	if w.leader(relays) != leader {
		t.Error("another relay leads")
	}
}
