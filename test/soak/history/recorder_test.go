package history

import (
	"bytes"
	"io"
	"sync"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// With several writers, consumers and faults at the same time, the history is complete and in order of time.
func TestRecorderIsSafeForConcurrentUse(t *testing.T) {
	var file bytes.Buffer
	r := NewRecorder(&file)
	const writers, transactions = 4, 250
	recovery := r.Recovery()
	delivered := make(chan outbox.UUID, writers*transactions)
	var writing, consuming sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			for n := range transactions {
				id := int64(w*transactions + n + 1)
				m := Message{ID: outbox.NewMessageID(), Kind: Plain}
				discarded := Message{ID: outbox.NewMessageID(), Kind: Large, Discarded: true}
				r.Ending(Transaction{ID: id, Writer: w, Messages: []Message{m, discarded}})
				r.Ended(id, Committed)
				delivered <- m.ID
			}
		})
	}
	for range 2 {
		consuming.Go(func() {
			for id := range delivered {
				r.Delivered(Delivery{Message: id, Queue: "q", Marked: true})
				r.Delivered(Delivery{Message: id, Queue: "q", Redelivered: true})
			}
		})
	}
	r.FaultBegan(Fault{ID: 1, Name: "nothing"})
	r.FaultHealed(1)
	writing.Wait()
	close(delivered)
	consuming.Wait()
	<-recovery
	for id := range int64(writers * transactions) {
		r.Kept(id + 1)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	v, err := Check(&file)
	if err != nil {
		t.Fatal(err)
	}
	if v.Result != Pass || v.Counters["ok"] != writers*transactions {
		t.Errorf("%+v", v)
	}
}

// Recovery is the arrival of a message that was committed afterwards, and can be delivered at once.
func TestRecoveryIsANewArrival(t *testing.T) {
	r := NewRecorder(io.Discard)
	commit := func(m Message) {
		r.Ending(Transaction{ID: 1, Messages: []Message{m}})
		r.Ended(1, Committed)
	}
	plain, later := Message{ID: outbox.UUID{1}, Kind: Plain}, Message{ID: outbox.UUID{2}, Kind: Plain}
	scheduled := Message{ID: outbox.UUID{3}, Kind: Scheduled, NotBefore: 1}
	commit(plain)
	recovery := r.Recovery()
	commit(scheduled)
	for _, m := range []Message{plain, scheduled, later} {
		r.Delivered(Delivery{Message: m.ID})
	}
	if len(recovery) > 0 {
		t.Error("recovered without a new message")
	}
	commit(later)
	r.Delivered(Delivery{Message: later.ID})
	if len(recovery) == 0 {
		t.Error("not recovered by a new message")
	}
}
