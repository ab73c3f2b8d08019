package e2e

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// behindItsOwnProxy is the same world for a relay with its own proxy to Postgres.
func (w *world) behindItsOwnProxy() (*world, *services.Proxy) {
	w.t.Helper()
	proxy, address := throughKinds(w.t, w.database)
	one := *w
	one.settings = append(one.settings[:len(one.settings):len(one.settings)], "CDC_RELAY_DATABASE_URL="+address)
	return &one, proxy
}

// It does so before it takes fresh rows. While it was cut off, another relay may have taken the slot and published
// them.
func TestAReconnectedStandbyChecksTheSlotFirst(t *testing.T) {
	services.Thorough(t, "waits for timeouts")
	t.Parallel()
	w, arrived := consuming(t)

	one, toOne := w.behindItsOwnProxy()
	cutOff := one.run("--poll-interval", "100ms")
	toOne.Only(services.Replication).Refuse()
	toOne.Only(services.Replication).Cut()
	w.await(arrived, w.insert(nil)) // nobody owns the slot: it takes rows that are some seconds old
	w.emptied()
	toOne.Only(services.Ordinary).Refuse()
	toOne.Only(services.Ordinary).Cut()

	other, toOther := w.behindItsOwnProxy()
	other.run()
	w.await(arrived, w.insert(nil))
	w.emptied()
	toOther.Only(services.Ordinary).Refuse()
	toOther.Only(services.Ordinary).Cut()
	w.insertMany(20)
	w.eventually("they arrive, and cannot be deleted", func() bool { return arrived.distinct() == 22 })
	w.eventually("they are some seconds old", func() bool {
		return value[bool](w, `SELECT count(*) = 20 AND max(created_at) < now() - interval '6 s' FROM outbox`)
	})
	again := len(linesWith(cutOff.logs(), "sweep_recovered"))
	toOne.Only(services.Ordinary).Accept()
	w.eventually("the reconnected standby sweeps again", func() bool {
		return len(linesWith(cutOff.logs(), "sweep_recovered")) > again
	})
	due := w.insert(row{"available_at": value[time.Time](w, `SELECT clock_timestamp()`)})
	w.await(arrived, due) // by then it has read the table
	toOther.Only(services.Ordinary).Accept()
	w.emptied()
	noDuplicates(t, arrived)
}
