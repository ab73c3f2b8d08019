package publish

import (
	"context"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// inbox is the common part of the publishers: it queues messages and reports results. Only the goroutine of Run may call
// methods other than Publish.
type inbox struct {
	in *mailbox[*outbox.Message]

	mu    sync.Mutex
	ended bool // Run takes no more messages
	sink  Sink // set when Run starts, and so before ended

	state State
}

// Publish implements Publisher.
func (p *inbox) Publish(m *outbox.Message) {
	p.mu.Lock()
	ended := p.ended
	if !ended {
		p.in.add(m)
	}
	p.mu.Unlock()
	if ended {
		p.deliver(m, outbox.NotSent, "the publisher has stopped")
		return
	}
	p.in.signal()
}

// end rejects all messages from now on.
func (p *inbox) end() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.reject("the publisher has stopped")
}

func (p *inbox) deliver(m *outbox.Message, o outbox.Outcome, detail string) {
	p.sink.Deliver(outbox.Result{Message: m, Outcome: o, Detail: detail})
}

func (p *inbox) reject(why string) {
	for _, m := range p.in.take(nil) {
		p.deliver(m, outbox.NotSent, why)
	}
}

// wait waits for d; messages published meanwhile are NotSent at once.
func (p *inbox) wait(ctx context.Context, d time.Duration, why string) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		p.reject(why)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-p.in.wake:
		}
	}
}

func (p *inbox) setState(phase Phase, detail string) {
	if p.state.Phase == phase && (phase != Ready || p.state.Detail == detail) {
		return
	}
	p.state = State{Phase: phase, Since: time.Now(), Detail: detail}
	p.sink.StateChanged(p.state)
}
