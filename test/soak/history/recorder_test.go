package history

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// With several writers, consumers and faults at the same time, the history is complete and in order of time.
func TestRecorderIsSafeForConcurrentUse(t *testing.T) {
	var file bytes.Buffer
	r := NewRecorder(&file, Run{Seed: 7, Command: "cdc-relay-soak --seed 7"})
	const writers, transactions = 4, 250
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
	if v.Result != Pass || v.Counters.OK != writers*transactions {
		t.Errorf("%+v", v)
	}
}

type fullDisk struct{ room int }

var errFull = errors.New("no space left on device")

func (f *fullDisk) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestErrorsOfTheFileAreReturned(t *testing.T) {
	for _, bytes := range []int{1 << 20, 200} { // while it is written, and by the last flush
		r := NewRecorder(&fullDisk{room: 200}, Run{})
		r.Delivered(Delivery{Content: strings.Repeat("x", bytes)})
		if err := r.Close(); !errors.Is(err, errFull) {
			t.Errorf("Close returned %v, want %v", err, errFull)
		}
	}
	if v, err := Check(iotest.ErrReader(errFull)); !errors.Is(err, errFull) {
		t.Errorf("Check returned %v, %v", v, err)
	}
}
