package load

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

func drawn(seed uint64, writer, transactions int) []*transaction {
	p := newPlanner(seed, writer, 3, 8, DefaultTopology("soak"))
	all := make([]*transaction, transactions)
	for i := range all {
		all[i] = p.next()
	}
	return all
}

// The outcome of a transaction only changes the names of keys.
func TestAbandonedKeysDoNotChangeTheChoices(t *testing.T) {
	p := newPlanner(7, 0, 3, 8, DefaultTopology("soak"))
	seen := make(map[string]bool)
	for i, want := range drawn(7, 0, 500) {
		got := p.next()
		for j := range got.rows {
			r, w := got.rows[j], want.rows[j]
			if r.ID != w.ID || r.Kind != w.Kind || r.fill != w.fill || r.headers != w.headers || (r.Key == "") != (w.Key == "") {
				t.Fatalf("transaction %d, row %d: %+v, want %+v", i, j, r, w)
			}
			if r.Key != "" && seen[r.Key] {
				t.Fatalf("transaction %d uses key %s after an unknown outcome", i, r.Key)
			}
		}
		if i%3 == 0 {
			p.abandon(got)
			for j := range got.rows {
				seen[got.rows[j].Key] = true
			}
		}
	}
}

func TestEveryKindOfTransactionIsChosen(t *testing.T) {
	verbs, kinds, ends := make(map[verb]int), make(map[history.Kind]int), make(map[ending]int)
	var discarded, keyed, plain int
	transactions, ids := make(map[int64]bool), make(map[outbox.UUID]bool)
	seqs := make(map[string]int)
	for writer := range 2 {
		for _, x := range drawn(1, writer, 3000) {
			transactions[x.id] = true
			ends[x.end]++
			for _, s := range x.steps {
				verbs[s.verb]++
			}
			for i := range x.rows {
				r := &x.rows[i]
				ids[r.ID] = true
				kinds[r.Kind]++
				if r.Discarded {
					discarded++
				}
				if r.Key == "" {
					plain++
					continue
				}
				keyed++
				if r.Kind == history.Scheduled {
					t.Fatal("a scheduled row has a key")
				}
				if seqs[r.Key]++; r.Seq != seqs[r.Key] {
					t.Fatalf("key %s: place %d, want %d", r.Key, r.Seq, seqs[r.Key])
				}
			}
		}
	}
	if len(transactions) != 6000 || len(ids) != keyed+plain {
		t.Errorf("%d ids of 6000 transactions, %d of %d messages", len(transactions), len(ids), keyed+plain)
	}
	t.Logf("verbs %v, kinds %v, ends %v, %d with a key and %d without, %d discarded", verbs, kinds, ends, keyed, plain, discarded)
	if len(verbs) != 7 || len(kinds) != 6 || len(ends) != 4 || discarded == 0 || keyed < plain/3 || plain < keyed/3 {
		t.Error("a kind of transaction is missing or rare")
	}
}

func TestKeysUseEveryQueue(t *testing.T) {
	topology := DefaultTopology("soak")
	queues := make(map[string]string)
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		queues[topology.queueOf(key)] = key
	}
	if len(queues) != topology.Keyed {
		t.Errorf("8 keys use %d of %d queues", len(queues), topology.Keyed)
	}
}
