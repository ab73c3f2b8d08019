package main

import (
	"sync"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// watch passes reports on to the recorder, and notices the first arrival of a message that was committed after a fault
// was fixed.
type watch struct {
	*history.Recorder

	mu        sync.Mutex
	ending    map[int64][]history.Message
	candidate map[outbox.UUID]bool // nil while nobody waits
	recovered chan struct{}        // closed by the first arrival
}

func newWatch(r *history.Recorder) *watch {
	return &watch{Recorder: r, ending: make(map[int64][]history.Message)}
}

// mostCandidates limits how many messages are remembered while nothing arrives.
const mostCandidates = 10_000

// await returns a channel that is closed when a message arrives that is committed from now on. It replaces the previous
// channel.
func (w *watch) await() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.candidate, w.recovered = make(map[outbox.UUID]bool), make(chan struct{})
	return w.recovered
}

// Ending implements the method of history.Recorder.
func (w *watch) Ending(t history.Transaction) {
	w.mu.Lock()
	if w.candidate != nil {
		w.ending[t.ID] = t.Messages
	}
	w.mu.Unlock()
	w.Recorder.Ending(t)
}

// Ended implements the method of history.Recorder.
func (w *watch) Ended(id int64, outcome history.Outcome) {
	w.Recorder.Ended(id, outcome)
	w.mu.Lock()
	defer w.mu.Unlock()
	messages := w.ending[id]
	delete(w.ending, id)
	if outcome != history.Committed || w.candidate == nil {
		return
	}
	for i := range messages {
		if m := &messages[i]; m.Kind.Arrives() && !m.Discarded && len(w.candidate) < mostCandidates {
			w.candidate[m.ID] = true
		}
	}
}

// Delivered implements the method of history.Recorder. If a delivery comes before the answer to its COMMIT, the next
// one counts.
func (w *watch) Delivered(d history.Delivery) {
	w.Recorder.Delivered(d)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.candidate[d.Message] {
		close(w.recovered)
		w.candidate = nil
		clear(w.ending)
	}
}
