package publish

import (
	"sync"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// flow publishes and counts results until it is stopped. Like the relay, it publishes only while the publisher is
// ready, and at most window messages at a time.
type flow struct {
	r        *running
	messages []*outbox.Message
	stop     chan struct{}
	done     sync.WaitGroup
}

func startFlow(r *running, k *maker, exchange, key string, window int) *flow {
	f := &flow{r: r, stop: make(chan struct{})}
	f.done.Go(func() {
		for {
			select {
			case <-f.stop:
				return
			default:
			}
			batch := k.many(window, exchange, key)
			f.messages = append(f.messages, batch...)
			r.publish(batch...)
			r.mu.Lock()
			for !f.settled(batch) || (r.phase() != Ready && !f.stopped()) {
				r.change.Wait()
			}
			r.mu.Unlock()
		}
	})
	return f
}

func (f *flow) settled(batch []*outbox.Message) bool {
	for _, m := range batch {
		if len(f.r.results[m]) == 0 {
			return false
		}
	}
	return true
}

func (f *flow) stopped() bool {
	select {
	case <-f.stop:
		return true
	default:
		return false
	}
}

// end stops the flow and returns all its results.
func (f *flow) end(t *testing.T) []outbox.Result {
	t.Helper()
	close(f.stop)
	f.r.mu.Lock()
	f.r.change.Broadcast()
	f.r.mu.Unlock()
	f.done.Wait()
	return f.r.awaitResults(t, f.messages...)
}

// awaitConfirms waits until n more messages were confirmed.
func awaitConfirms(t *testing.T, r *running, n int) {
	t.Helper()
	r.mu.Lock()
	want := r.confirmed + n
	r.mu.Unlock()
	r.await(t, "confirms", func() bool { return r.confirmed >= want })
}
