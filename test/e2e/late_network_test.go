package e2e

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// The server ends the leader's lock and stream, and another relay publishes rows that the leader still has: they are delayed
// between Postgres and the leader, or wait in its publisher for an exchange check.
func TestMessagesDelayedAtATakeoverAreMarked(t *testing.T) {
	for name, disturb := range map[string]func(*takeovers, *behindProxies){
		"from Postgres": (*takeovers).delayPostgres, "in the publisher": (*takeovers).delayBroker,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			takeOver(t, 3, disturb)
		})
		t.Run("100 rounds "+name, func(t *testing.T) {
			needsLong(t)
			t.Parallel()
			takeOver(t, 100, disturb)
		})
	}
}

// maxDelay is the maximum delay of the network.
const maxDelay = 2700 * time.Millisecond

// takeovers are rounds in which one relay takes over from the other.
type takeovers struct {
	*world
	relays []*behindProxies
	load   *writers
	round  int
}

type behindProxies struct {
	*relay
	postgres, broker *services.Proxy
}

// behindItsOwnProxy is the same world for a relay with its own proxy to Postgres.
func (w *world) behindItsOwnProxy() (*world, *services.Proxy) {
	w.t.Helper()
	proxy, address := throughKinds(w.t, w.database)
	one := *w
	one.settings = append(one.settings[:len(one.settings):len(one.settings)], "CDC_RELAY_DATABASE_URL="+address)
	return &one, proxy
}

// runBehindProxies starts a relay with its own proxies.
func (w *world) runBehindProxies(args ...string) *behindProxies {
	w.t.Helper()
	one, postgres := w.behindItsOwnProxy()
	broker, address := through(w.t, w.broker)
	one.settings = append(one.settings, "CDC_RELAY_AMQP_URL="+address)
	return &behindProxies{one.run(args...), postgres, broker}
}

func takeOver(t *testing.T, rounds int, disturb func(*takeovers, *behindProxies)) {
	w, arrived := consuming(t)
	const inFlight = 2000
	k := &takeovers{world: w}
	var relays []*relay
	for range 2 {
		r := w.runBehindProxies("--max-in-flight", fmt.Sprint(inFlight))
		relays = append(relays, r.relay)
		k.relays = append(k.relays, r)
	}
	k.load = w.write(2)
	for k.round = range rounds {
		w.oneStreams(relays)
		leader, other := k.relays[0], k.relays[1]
		if w.leader(relays) == other.relay {
			leader, other = other, leader
		}
		k.load.more(100)
		disturb(k, leader)
		w.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND (application_name = 'cdc-relay leader' OR backend_type = 'walsender')`)
		ended := time.Now()
		w.eventually("the other takes over", func() bool { return other.metric("cdc_relay_slot_held") == 1 })
		w.eventually("the delayed messages have arrived", func() bool { return time.Since(ended) > maxDelay+200*time.Millisecond })
		leader.postgres.Delay(0)
		leader.postgres.Accept()
		leader.broker.Delay(0)
	}
	k.load.allCommittedArrive(arrived, rounds*2*inFlight)
	t.Logf("%d duplicates in %d rounds", arrived.duplicates(), rounds)
	arrived.allMarked()
}

// delayPostgres delays data from Postgres, and every other round also data from the relay.
func (k *takeovers) delayPostgres(leader *behindProxies) {
	directions := [][]services.Direction{{services.Downstream}, nil}[k.round%2]
	leader.postgres.Delay(600*time.Millisecond+rand.N(maxDelay-600*time.Millisecond), directions...)
	k.load.more(100 + rand.N(500))
}

// delayBroker delays the broker's answers. Messages then wait for a new exchange, which takes several answers.
func (k *takeovers) delayBroker(leader *behindProxies) {
	exchange := fmt.Sprintf("%s_%d", k.queue, k.round)
	k.bindExchange(exchange, "fanout", k.queue, "")
	leader.broker.Delay(130*time.Millisecond+rand.N(80*time.Millisecond), services.Downstream)
	k.load.also(query[string](k.world, `INSERT INTO outbox (exchange, routing_key, payload)
		SELECT $1, $2, '{}' FROM generate_series(1, 100) RETURNING message_id::text`, exchange, k.queue))
	leader.inFlight(100)
	leader.postgres.Refuse() // otherwise it takes the lock again
}
