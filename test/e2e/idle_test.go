package e2e

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/bench/gauge"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// transactions returns how many transactions of the database the server has counted.
func (w *world) transactions() float64 {
	w.t.Helper()
	return value[float64](w, `SELECT (xact_commit + xact_rollback)::float8 FROM pg_stat_database WHERE datname = current_database()`)
}

// cpu returns the processor time of the process.
func (r *relay) cpu() time.Duration {
	r.w.t.Helper()
	used, _, err := gauge.CPU(r.cmd.Process.Pid)
	if err != nil {
		r.w.t.Skip("no /proc on this system")
	}
	return used
}

func TestAnIdleRelayMakesFewQueries(t *testing.T) {
	services.Thorough(t, "measures the speed")
	t.Parallel()
	w := newWorld(t).plainly().setUp()
	over := sized(4*time.Second, time.Minute)
	once := func(who string, relays ...*relay) (perSecond float64) {
		cpu := time.Duration(0)
		for _, r := range relays {
			cpu -= r.cpu()
		}
		began, before := time.Now(), w.transactions()
		<-time.After(over)
		perSecond = (w.transactions() - before) / time.Since(began).Seconds()
		for _, r := range relays {
			cpu += r.cpu()
		}
		t.Logf("%s: %.1f transactions a second, %.2f %% of a core", who, perSecond, 100*cpu.Seconds()/time.Since(began).Seconds())
		return perSecond
	}
	measure := func(who string, most float64, relays ...*relay) {
		t.Helper()
		// An idle session reports its counts from the start up to ten seconds later.
		var perSecond float64
		for range 10 {
			if perSecond = once(who, relays...); perSecond <= most {
				return
			}
		}
		t.Errorf("%s: %.1f transactions a second, want at most %.0f", who, perSecond, most)
	}
	leader := w.run()
	measure("one that streams", 3, leader)
	standby := w.run()
	measure("one that streams and one that stands by", 8, leader, standby)
}
