package amqp

import (
	"sync"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
)

// flow publishes and counts results until it is stopped. Like the relay, it publishes only while the publisher is
// ready, and at most window messages at a time.
type flow struct {
	r        *running
	messages []*outbox.Message
	stop     chan struct{}
	done     sync.WaitGroup
}

func startFlow(r *running, k *publishtest.Maker, exchange, key string, window int) *flow {
	f := &flow{r: r, stop: make(chan struct{})}
	f.done.Go(func() {
		for {
			select {
			case <-f.stop:
				return
			default:
			}
			batch := k.Many(window, exchange, key)
			f.messages = append(f.messages, batch...)
			r.PublishAll(batch...)
			r.Mu.Lock()
			for !f.settled(batch) || (r.Phase() != publish.Ready && !f.stopped()) {
				r.Change.Wait()
			}
			r.Mu.Unlock()
		}
	})
	return f
}

func (f *flow) settled(batch []*outbox.Message) bool {
	for _, m := range batch {
		if len(f.r.Results[m]) == 0 {
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
	f.r.Mu.Lock()
	f.r.Change.Broadcast()
	f.r.Mu.Unlock()
	f.done.Wait()
	return f.r.AwaitResults(t, f.messages...)
}

// awaitConfirms waits until n more messages were confirmed.
func awaitConfirms(t *testing.T, r *running, n int) {
	t.Helper()
	r.Mu.Lock()
	want := r.Confirmed + n
	r.Mu.Unlock()
	r.Await(t, "confirms", func() bool { return r.Confirmed >= want })
}
