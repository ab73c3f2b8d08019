package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/services"
)

func newSharded(t *testing.T, shards int) *world {
	t.Helper()
	w := newWorld(t)
	w.slot = "s" + strings.ToLower(newUUID()[:8]) // the shards' names are longer
	w.setUpShards(shards)
	w.declareQueue(w.queue, nil)
	return w
}

func (w *world) setUpShards(n int) {
	w.t.Helper()
	out, code := w.command("setup", "--shards", fmt.Sprint(n))
	if code != 0 || n > 1 && strings.Count(out, fmt.Sprintf("_of_%d", n)) < 2*n {
		w.t.Fatalf("setup: exit %d\n%s", code, out)
	}
}

func (w *world) ofShard(shard, of int, args []string) []string {
	return append([]string{"--shard", fmt.Sprintf("%d/%d", shard, of)}, args...)
}

// Four shards have a leader and a standby each. Writers use keys or none, and leaders are killed. Everything arrives,
// once or marked, each key in order.
func TestEachShardPublishesItsOwnRows(t *testing.T) {
	const shards, inFlight = 4, 200
	w := newSharded(t, shards)
	args := []string{"--max-in-flight", fmt.Sprint(inFlight), "--poll-interval", "200ms"}
	relays := make([][]*relay, shards)
	for shard := range relays {
		relays[shard] = w.runMany(2, w.ofShard(shard, shards, args)...)
	}
	// Separate queues: the order within one is known.
	keyed := w.queue + "_keys"
	w.declareQueue(keyed, nil)
	w.bindExchange(keyed, "fanout", keyed, "")
	plain, ordered := w.consume(w.queue), w.consume(keyed)
	keys := numbered("k", 40)
	each := evenly(keys, 60)
	slow := w.loadKeys(keys, 60, func(string) any { return keyed })
	load := w.write(2)
	kills := 0
	for range sized(1, 4) {
		for shard := range relays {
			load.more(300)
			leader := w.leader(relays[shard])
			leader.kill()
			kills++
			load.more(100)
			for i, r := range relays[shard] {
				if r == leader {
					relays[shard][i] = w.run(w.ofShard(shard, shards, args)...)
				}
			}
			w.oneStreams(relays[shard])
		}
	}
	slow.Wait()
	load.more(200)
	load.allArrive(plain, kills*inFlight)
	w.eventually("all keyed ones arrive", func() bool { return ordered.distinct() == len(keys)*60 })
	w.inOrder(ordered, each)
	ordered.allMarked()
	for shard, pair := range relays {
		published := 0.0
		for _, r := range pair {
			r.noRejections()
			published += r.metric("cdc_relay_messages_published_total")
		}
		if published == 0 {
			t.Errorf("shard %d has published nothing", shard)
		}
	}
}

// The number is changed under load, as docs/scaling.md says. Rows wait in the table meanwhile; duplicates are marked.
func TestChangingTheNumberOfShardsLosesNothing(t *testing.T) {
	services.Thorough(t, "shards share the rows in the quick run")
	w := newSharded(t, 1)
	arrived := w.consume(w.queue)
	args := []string{"--poll-interval", "200ms"}
	load := w.write(2)
	before := 0
	for _, n := range []int{1, 2, 3, 1} {
		if before > 0 {
			load.more(200) // no relay runs
			w.succeeds("teardown", "--yes", "--shards", fmt.Sprint(before))
			w.setUpShards(n)
		}
		var relays []*relay
		for shard := range n {
			relays = append(relays, w.run(w.ofShard(shard, n, args)...))
		}
		load.more(400)
		w.eventually("they publish the waiting rows", func() bool { return arrived.distinct() > load.rows()-200 })
		for _, r := range relays {
			r.signal(syscall.SIGTERM)
		}
		for _, r := range relays {
			if code := r.exit(); code != 0 {
				t.Errorf("exit code %d", code)
			}
		}
		before = n
	}
	w.run(args...)
	load.allArrive(arrived, 0)
}

// A second slot of the table would retain WAL that nobody reads.
func TestAnotherSlotOfTheTableIsRejectedWhileOneStreams(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	other := services.Name(t)
	w.succeeds("setup", "--slot", other) // nobody streams yet
	r := w.run()
	poller := w.run("--mode", "poll", "--slot", other, "--poll-interval", "20ms")
	for _, args := range [][]string{
		{"run", "--slot", other},
		{"run", "--slot", other, "--publication", other},
		{"setup", "--slot", other + "_2"},
		{"drain", "--slot", other},
		{"check", "--slot", other},
	} {
		w.fails(args, "public.outbox is streamed from slot "+w.slot+" by Postgres process", "the same --slot")
	}
	for range 50 {
		w.await(arrived, w.insert(row{"ordering_key": "k"}))
		w.await(arrived, w.insert(nil))
	}
	r.noRejections()
	poller.noRejections()
	noDuplicates(t, arrived)
	if n := value[int](w, `SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE $1 || '%'`, other); n != 1 {
		t.Errorf("%d slots have the other name", n)
	}
}

// Those slots would have no reader.
func TestTeardownKeepsTablesWhileOtherShardsHaveSlots(t *testing.T) {
	w := newSharded(t, 2)
	for _, args := range [][]string{{"teardown", "--yes", "--tables", "--shard", "0/2"}, {"teardown", "--yes"}} {
		w.fails(args, w.slot+"_1_of_2", "cdc-relay teardown --shards 2 --slot '"+w.slot+"'")
	}
	if n := value[int](w, `SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE $1`, w.slot+"%"); n != 2 {
		t.Errorf("%d slots are left", n)
	}
	w.succeeds("teardown", "--yes", "--tables", "--shards", "2")
}
