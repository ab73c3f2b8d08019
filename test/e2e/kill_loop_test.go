package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// numberedRows inserts rows until it is stopped: some with ordering keys, in order, and some without.
type numberedRows struct {
	w    *world
	stop context.CancelFunc
	done sync.WaitGroup
	last map[string]int // the last number of each writer's key
	err  error
}

// free stands for the rows without an ordering key.
const free = "free"

// writeNumbered inserts rows of the next key and some without a key, every 10 ms.
func (w *world) writeNumbered(keys []string, ofKey, ofNone int) *numberedRows {
	ctx, stop := context.WithCancel(w.t.Context())
	n := &numberedRows{w: w, stop: stop, last: make(map[string]int)}
	n.done.Go(func() {
		pace := time.NewTicker(10 * time.Millisecond)
		defer pace.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			key := keys[i%len(keys)]
			if n.err = n.insert(key, 1+i%ofKey, key); n.err == nil {
				n.err = n.insert(free, ofNone, nil)
			}
			if n.err != nil {
				return
			}
			<-pace.C
		}
	})
	w.t.Cleanup(func() { n.stop(); n.done.Wait() })
	return n
}

func (n *numberedRows) insert(counted string, rows int, key any) error {
	from := n.last[counted] + 1
	_, err := n.w.db.Exec(context.Background(), `INSERT INTO outbox (routing_key, ordering_key, payload)
		SELECT $1, $2, json_build_object('k', $3::text, 'n', n) FROM generate_series($4::int, $5::int) n ORDER BY n`,
		n.w.queue, key, counted, from, from+rows-1)
	n.last[counted] += rows
	return err
}

// end stops the writer and returns the number of rows of each key.
func (n *numberedRows) end() map[string]int {
	n.w.t.Helper()
	n.stop()
	n.done.Wait()
	if n.err != nil {
		n.w.t.Fatal(n.err)
	}
	return n.last
}

// The leader is killed at random moments, with and without a standby, also during its start.
func TestRepeatedKillsOfTheLeaderLoseNothing(t *testing.T) {
	services.Thorough(t, "leaders are killed in other tests of the quick run")
	t.Parallel()
	for name, others := range map[string]int{"alone": 0, "with one standing by": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, arrived := consuming(t)
			rows := w.writeNumbered(numbered("k", 20), 7, 10)
			const inFlight = 200
			kills := sized(5, 200)
			w.killRepeatedly(kills, 1+others, arrived, "--max-in-flight", fmt.Sprint(inFlight))
			each := rows.end()
			w.eventually("the table is empty", w.outboxEmpty)
			w.eventually("all arrive", func() bool { return arrived.distinct() == total(each) })
			w.inOrder(arrived, each)
			w.noDeadLetters()
			t.Logf("%d messages, %d kills, %d duplicates", arrived.distinct(), kills, arrived.duplicates())
			if n := arrived.duplicates(); n > kills*inFlight {
				t.Errorf("%d duplicates after %d kills with %d in flight", n, kills, inFlight)
			}
			arrived.allMarked()
		})
	}
}

func (w *world) killRepeatedly(kills, relayCount int, arrived *ledger, args ...string) {
	w.t.Helper()
	relays := w.runMany(relayCount, args...)
	for round := range kills {
		awaited := arrived.distinct() + rand.IntN(500)
		var leader *relay
		w.eventually("a relay streams, and messages arrive", func() bool {
			leader = leaderOf(relays)
			return leader != nil && arrived.distinct() >= awaited
		})
		leader.kill()
		if relayCount == 1 && round%4 == 0 {
			w.start(args...).kill() // before it has done much
		}
		for i := range relays {
			if relays[i] == leader {
				relays[i] = w.start(args...)
			}
		}
	}
}

func total(each map[string]int) (n int) {
	for _, rows := range each {
		n += rows
	}
	return n
}
