package e2e

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestAnIdleRelayMakesFewQueries(t *testing.T) {
	services.Thorough(t, "measures the speed")
	t.Parallel()
	w := newWorld(t).plainly().setUp()
	transactions := func() float64 {
		return value[float64](w, `SELECT (xact_commit + xact_rollback)::float8 FROM pg_stat_database WHERE datname = current_database()`)
	}
	for _, most := range []float64{3, 8} { // one that streams, and another one that stands by
		w.run()
		perSecond := most + 1
		for n := 0; perSecond > most && n < 10; n++ { // idle sessions report their start up to ten seconds later
			began, before := time.Now(), transactions()
			<-time.After(sized(4*time.Second, time.Minute))
			perSecond = (transactions() - before) / time.Since(began).Seconds()
		}
		if perSecond > most {
			t.Errorf("%.1f transactions a second, want at most %.0f", perSecond, most)
		}
	}
}
