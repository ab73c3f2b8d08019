// Package publishtest has the tests that every publisher must pass, and what tests of publishers share.
package publishtest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
)

// Recorder is a sink that records everything.
type Recorder struct {
	// Mu guards the fields below.
	Mu      sync.Mutex
	Change  *sync.Cond
	Results map[*outbox.Message][]outbox.Result
	// Confirmed counts the confirmed results.
	Confirmed int
	States    []publish.State
}

// NewRecorder returns a recorder without results.
func NewRecorder() *Recorder {
	r := &Recorder{Results: make(map[*outbox.Message][]outbox.Result)}
	r.Change = sync.NewCond(&r.Mu)
	return r
}

// Deliver implements publish.Sink.
func (r *Recorder) Deliver(result outbox.Result) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.Results[result.Message] = append(r.Results[result.Message], result)
	if result.Outcome == outbox.Confirmed {
		r.Confirmed++
	}
	r.Change.Broadcast()
}

// StateChanged implements publish.Sink.
func (r *Recorder) StateChanged(s publish.State) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.States = append(r.States, s)
	r.Change.Broadcast()
}

// Await waits until the condition holds; it is called with the lock held.
func (r *Recorder) Await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	expired := false
	timer := time.AfterFunc(await.Hang(), func() {
		r.Mu.Lock()
		defer r.Mu.Unlock()
		expired = true
		r.Change.Broadcast()
	})
	defer timer.Stop()
	r.Mu.Lock()
	defer r.Mu.Unlock()
	for !holds() {
		if expired {
			t.Fatalf("waited %v for %s; states %v, %d results", await.Hang(), what, r.States, len(r.Results))
		}
		r.Change.Wait()
	}
}

// Phase returns the newest phase; it is called with the lock held.
func (r *Recorder) Phase() publish.Phase {
	if len(r.States) == 0 {
		return 0
	}
	return r.States[len(r.States)-1].Phase
}

// AwaitPhase waits until the phase is the newest.
func (r *Recorder) AwaitPhase(t *testing.T, phase publish.Phase) {
	t.Helper()
	r.Await(t, phase.String(), func() bool { return r.Phase() == phase })
}

// Mark is a point in the history of states.
func (r *Recorder) Mark() int {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return len(r.States)
}

// AwaitSince waits for a phase after a mark.
func (r *Recorder) AwaitSince(t *testing.T, mark int, phase publish.Phase) {
	t.Helper()
	r.Await(t, phase.String(), func() bool {
		for _, s := range r.States[mark:] {
			if s.Phase == phase {
				return true
			}
		}
		return false
	})
}

// CountSince returns how often a phase began since a mark.
func (r *Recorder) CountSince(mark int, phase publish.Phase) int {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	n := 0
	for i := mark; i < len(r.States); i++ {
		if r.States[i].Phase == phase && (i == 0 || r.States[i-1].Phase != phase) {
			n++
		}
	}
	return n
}

// AwaitResults waits for the result of each message and returns it.
func (r *Recorder) AwaitResults(t *testing.T, messages ...*outbox.Message) []outbox.Result {
	t.Helper()
	r.Await(t, fmt.Sprintf("the results of %d messages", len(messages)), func() bool {
		for _, m := range messages {
			if len(r.Results[m]) == 0 {
				return false
			}
		}
		return true
	})
	r.Mu.Lock()
	defer r.Mu.Unlock()
	results := make([]outbox.Result, len(messages))
	for i, m := range messages {
		results[i] = r.Results[m][0]
	}
	return results
}

// CheckOnce fails if a message has more or less than one result.
func (r *Recorder) CheckOnce(t *testing.T) {
	t.Helper()
	r.Mu.Lock()
	defer r.Mu.Unlock()
	for m, results := range r.Results {
		if len(results) != 1 {
			t.Errorf("message %d has %d results: %v", m.ID, len(results), results)
		}
	}
}

// Count returns how many results have the outcome.
func Count(results []outbox.Result, outcome outbox.Outcome) int {
	n := 0
	for _, r := range results {
		if r.Outcome == outcome {
			n++
		}
	}
	return n
}

// AllAre fails unless each result has the outcome.
func AllAre(t *testing.T, results []outbox.Result, outcome outbox.Outcome) {
	t.Helper()
	for _, r := range results {
		if r.Outcome != outcome {
			t.Errorf("message %d: %v (%s: %s), want %v", r.Message.ID, r.Outcome, r.Reason, r.Detail, outcome)
		}
	}
}

// Maker makes messages with new ids.
type Maker struct{ ID int64 }

// Make makes one message.
func (k *Maker) Make(exchange, key, payload string) *outbox.Message {
	k.ID++
	m := &outbox.Message{
		Row: outbox.Row{
			ID:            k.ID,
			RoutingKey:    key,
			Payload:       []byte(payload),
			Exchange:      &exchange,
			SchemaVersion: 1,
			CreatedAt:     time.Unix(1_700_000_000+k.ID, 0),
		},
		// On a slow machine, the time from here to the write must not look like a process that stood still. Tests of
		// the mark set their own time.
		TakenAt: time.Now().Add(time.Hour),
	}
	copy(m.MessageID[:], fmt.Sprintf("%016d", k.ID))
	return m
}

// Many makes n messages.
func (k *Maker) Many(n int, exchange, key string) []*outbox.Message {
	messages := make([]*outbox.Message, n)
	for i := range messages {
		messages[i] = k.Make(exchange, key, fmt.Sprintf(`{"n": %d}`, i))
	}
	return messages
}

// Running is a publisher that runs.
type Running struct {
	publish.Publisher
	*Recorder
	Cancel context.CancelFunc
	Done   chan struct{}
	Err    error
}

// Start runs a publisher until the test ends or Stop is called.
func Start(t *testing.T, p publish.Publisher) *Running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &Running{Publisher: p, Recorder: NewRecorder(), Cancel: cancel, Done: make(chan struct{})}
	go func() {
		defer close(r.Done)
		r.Err = p.Run(ctx, r.Recorder)
	}()
	t.Cleanup(func() {
		r.Stop(t)
		r.CheckOnce(t)
	})
	return r
}

// Stop ends Run and waits for it.
func (r *Running) Stop(t *testing.T) {
	t.Helper()
	r.Cancel()
	await.Receive(t, "Run returns", r.Done)
}

// PublishAll publishes messages in their order.
func (r *Running) PublishAll(messages ...*outbox.Message) {
	for _, m := range messages {
		r.Publish(m)
	}
}

// Answers publishes messages in their order, and waits for the result of each.
func (r *Running) Answers(t *testing.T, messages ...*outbox.Message) []outbox.Result {
	t.Helper()
	r.PublishAll(messages...)
	return r.AwaitResults(t, messages...)
}

// Settled are certain results by the id of the message.
type Settled map[int64]outbox.Result

// Settle publishes messages, and again those without a certain result, as the relay would, until all have one, or until
// enough, if it is set, returns true after a round. Each round adds fresh messages. It returns the certain results,
// and all.
func (r *Running) Settle(
	t *testing.T, messages []*outbox.Message, fresh func() []*outbox.Message, enough func(Settled) bool,
) (certain Settled, all []outbox.Result) {
	t.Helper()
	certain = make(Settled)
	for round := 0; len(messages) > 0 && (enough == nil || !enough(certain)); round++ {
		if round == 100 {
			t.Fatalf("%d messages are not settled in %d rounds: %s", len(messages), round, all[len(all)-1].Detail)
		}
		r.AwaitPhase(t, publish.Ready)
		if fresh != nil {
			messages = append(messages, fresh()...)
		}
		results := r.Answers(t, messages...)
		all, messages = append(all, results...), nil
		for _, result := range results {
			if result.Outcome == outbox.NotSent || result.Outcome == outbox.Unknown {
				again := *result.Message
				again.PossibleDuplicate = again.PossibleDuplicate || result.MayHaveArrived()
				messages = append(messages, &again)
				continue
			}
			certain[result.Message.ID] = result
		}
	}
	return certain, all
}
