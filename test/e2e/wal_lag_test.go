package e2e

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// lag is how far a slot is behind, in MB.
type lag struct {
	Confirmed float64 // by the confirmed position
	Retained  float64 // by the WAL that the server retains for it
}

func (w *world) lag() lag {
	w.t.Helper()
	return query[lag](w, `SELECT (pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn) / 1e6)::float8 AS confirmed,
		(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) / 1e6)::float8 AS retained
		FROM pg_replication_slots WHERE slot_name = $1`, w.slot)[0]
}

// Meanwhile other tables write much WAL, and rows are inserted. The outage charges no attempt, and the waiting rows
// leave at once afterwards.
func TestAnOutageOfTheBrokerRetainsNoWAL(t *testing.T) {
	services.Thorough(t, "other outages of RabbitMQ are in the quick run")
	t.Parallel()
	w := newWorldOn(t, services.PrivatePostgres(t).Database(t), services.VHost(t)).setUp()
	proxy, address := through(t, w.broker)
	w.settings = append(w.settings, "CDC_RELAY_AMQP_URL="+address)
	w.run()
	proxy.BlackHole()
	began := time.Now()
	most, written, rows := w.insertAmongOtherWrites(sized(200, 1000))
	t.Logf("%d rows and %d MB of WAL within %s: the slot was at most %.1f MB behind what the relay had confirmed, "+
		"and kept %.1f MB", rows, written, time.Since(began).Round(time.Millisecond), most.Confirmed, most.Retained)
	if most.Confirmed >= 64 {
		t.Errorf("the slot was %+v MB behind, want less than 64", most)
	}
	<-time.After(sized(15*time.Second, 5*time.Minute) - time.Since(began)) // the length of the outage
	w.noAttempts()
	proxy.Resume()
	arrived := w.consume(w.queue)
	within(t, "the first delivery", 2*time.Second, func() {
		w.eventually("one arrives", func() bool { return arrived.distinct() > 0 })
	})
	w.eventually("all arrive", func() bool { return arrived.distinct() == rows })
	w.emptied()
	w.noDeadLetters()
}

// insertAmongOtherWrites inserts rows between writes to other tables, and returns the maximum lag of the slot. The
// server releases WAL up to its last record of running transactions, which it writes every fifteen seconds or at a
// checkpoint. So the test makes checkpoints, as a server with that many writes does, and waits until the server has
// released the WAL.
func (w *world) insertAmongOtherWrites(mb int) (most lag, written, rows int) {
	w.t.Helper()
	const piece, between = 2, 16
	for ; written < mb; written += piece {
		w.writeWAL(piece)
		w.insertMany(5)
		rows += 5
		now := w.lag()
		most.Confirmed, most.Retained = max(most.Confirmed, now.Confirmed), max(most.Retained, now.Retained)
		if written%between == 0 {
			w.exec(`CHECKPOINT`)
		}
		if written%(4*between) == 0 {
			w.awaitNoRetainedWAL()
		}
	}
	w.awaitNoRetainedWAL()
	return most, written, rows
}

// awaitNoRetainedWAL waits until the server retains hardly any WAL for the slot, during the outage.
func (w *world) awaitNoRetainedWAL() {
	w.t.Helper()
	w.eventually("the server keeps less than 16 MB of WAL for the slot", func() bool {
		w.exec(`CHECKPOINT`)
		return w.lag().Retained < 16
	})
}
