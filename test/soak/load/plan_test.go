package load

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

func drawn(seed uint64, writer, transactions int) []*transaction {
	p := newPlanner(seed, writer, 3, Topology{Prefix: "soak"})
	all := make([]*transaction, transactions)
	for i := range all {
		all[i] = p.next()
	}
	return all
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
	t.Logf("verbs %v, kinds %v, ends %v, %d with a key and %d without, %d discarded",
		verbs, kinds, ends, keyed, plain, discarded)
	if len(verbs) != 7 || len(kinds) != 6 || len(ends) != 4 || discarded == 0 || keyed < plain/3 || plain < keyed/3 {
		t.Error("a kind of transaction is missing or rare")
	}
}
