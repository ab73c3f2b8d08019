package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// leaderOf returns the relay that streams; nil: none.
func leaderOf(relays []*relay) *relay {
	for _, r := range relays {
		if !r.exited() && r.metric("cdc_relay_slot_held") == 1 {
			return r
		}
	}
	return nil
}

// leader waits for the relay that streams.
func (w *world) leader(relays []*relay) (leader *relay) {
	w.t.Helper()
	w.eventually("a relay streams", func() bool {
		leader = leaderOf(relays)
		return leader != nil
	})
	return leader
}

// runMany starts relays on one slot and waits until one streams and the others are standbys.
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

// One streams. Killing it interrupts deliveries for less than two seconds and loses nothing.
func TestManyRelaysShareOneSlot(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3, 10} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			if n != 3 {
				services.Thorough(t, "three relays are enough")
			}
			t.Parallel()
			w, arrived := consuming(t)
			const inFlight = 200
			relays := w.runMany(n, "--max-in-flight", fmt.Sprint(inFlight), "--poll-interval", "100ms")
			load := w.write(2)
			load.more(500)

			kills := sized(1, 5)
			for range kills {
				leader := w.leader(relays)
				load.more(200)
				arrived.restartGap()
				leader.kill()
				load.more(500)
				marker := w.insert(nil) // the gap ends when it has arrived
				load.also([]string{marker})
				w.await(arrived, marker)
				inTime(t, "without a delivery after the leader was killed", arrived.longestGap(), 2*time.Second)
				for i := range relays {
					if relays[i].exited() {
						relays[i] = w.run("--max-in-flight", fmt.Sprint(inFlight), "--poll-interval", "100ms")
					}
				}
				w.oneStreams(relays)
			}
			load.more(200)
			load.allArrive(arrived, kills*inFlight)
			t.Logf("%d duplicates after %d kills", arrived.duplicates(), kills)
			for _, r := range relays {
				r.noRejections()
			}
		})
	}
}
