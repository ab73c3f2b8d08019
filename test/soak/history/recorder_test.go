package history

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// With several writers, consumers, faults and a display at the same time, the history is complete and in order of time,
// and the live numbers equal those of the verdict.
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
				r.Ending(Transaction{ID: id, Writer: w, Messages: []Message{m, {ID: outbox.NewMessageID(), Kind: Large, Discarded: true}}})
				r.Ended(id, Committed)
				delivered <- m.ID
				r.Counts()
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
	counts := r.Counts()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	v, err := Check(&file)
	if err != nil {
		t.Fatal(err)
	}
	if !v.Passed() || v.Counters.OK != writers*transactions || v.Run.Command != "cdc-relay-soak --seed 7" || v.Run.Started.IsZero() {
		t.Errorf("%s", rendered(v))
	}
	c := v.Counters
	want := Counts{Attempted: c.Attempt, Acknowledged: c.Acknowledged, Delivered: c.Delivered, Redelivered: c.Redelivered, Faults: 1}
	if counts != want {
		t.Errorf("the live numbers were %+v, want %+v", counts, want)
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

func TestRecorderReturnsWriteErrors(t *testing.T) {
	r := NewRecorder(&fullDisk{room: 1000}, Run{})
	if err := r.Err(); err != nil {
		t.Fatalf("an error too early: %v", err)
	}
	for range 2 {
		r.Delivered(Delivery{Damaged: strings.Repeat("x", 1<<20)})
	}
	if err := r.Err(); !errors.Is(err, errFull) {
		t.Errorf("Err is %v, want %v", err, errFull)
	}
	if err := r.Close(); !errors.Is(err, errFull) {
		t.Errorf("Close returned %v, want %v", err, errFull)
	}
	if r.Counts().Delivered != 1 {
		t.Error("the counts stop after a write error")
	}
	small := NewRecorder(&fullDisk{room: 200}, Run{})
	small.Delivered(Delivery{Damaged: strings.Repeat("x", 200)})
	if err := small.Close(); !errors.Is(err, errFull) {
		t.Errorf("an error of the flush: Close returned %v, want %v", err, errFull)
	}
}

func TestAClosedRecorderWritesNothing(t *testing.T) {
	var file bytes.Buffer
	r := NewRecorder(&file, Run{})
	if err := r.CloseEarly(""); err != nil {
		t.Fatal(err)
	}
	length := file.Len()
	r.Kept(1)
	if err := r.Close(); err != nil || file.Len() != length {
		t.Errorf("after Close: %v, and %d bytes more", err, file.Len()-length)
	}
	v, err := Check(&file)
	if err != nil || v.Result != Incomplete || v.Incomplete != "no reason was given" {
		t.Errorf("%+v, %v", v, err)
	}
}
