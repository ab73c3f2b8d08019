package e2e

import (
	"slices"
	"syscall"
	"testing"
	"time"
)

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
