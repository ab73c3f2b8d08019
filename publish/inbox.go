package publish

import (
	"context"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Inbox is the common part of the publishers: it queues messages and reports results. Only the goroutine of Run may
// call methods other than Publish.
type Inbox struct {
	// Messages has the messages that the publisher has not taken. Those that were rejected before, or have so many
	// headers that these cost more than the message, give way to others.
	Messages *Mailbox[*outbox.Message]
	// Sink is set when Run starts.
	Sink Sink

	mu    sync.Mutex
	ended bool // Run takes no more messages

	state State
}

// NewInbox returns an inbox without messages.
func NewInbox() *Inbox {
	p := &Inbox{Messages: NewMailbox[*outbox.Message]()}
	const manyHeaders = 4 << 10 // bytes
	p.Messages.isSlow = func(m *outbox.Message) bool { return m.Attempts > 0 || len(m.Headers) > manyHeaders }
	return p
}

// Publish implements Publisher.
func (p *Inbox) Publish(m *outbox.Message) {
	p.mu.Lock()
	ended := p.ended
	if !ended {
		p.Messages.Add(m)
	}
	p.mu.Unlock()
	if ended {
		p.Deliver(m, outbox.NotSent, "the publisher has stopped")
		return
	}
	p.Messages.Signal()
}

// End rejects all messages from now on.
func (p *Inbox) End() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.Reject("the publisher has stopped")
}

// Deliver reports a result.
func (p *Inbox) Deliver(m *outbox.Message, o outbox.Outcome, detail string) {
	p.Sink.Deliver(outbox.Result{Message: m, Outcome: o, Detail: detail})
}

// Reject reports each waiting message as not sent.
func (p *Inbox) Reject(why string) {
	for waiting := p.Messages.Take(nil); len(waiting) > 0; waiting = p.Messages.Take(nil) {
		for _, m := range waiting {
			p.Deliver(m, outbox.NotSent, why)
		}
	}
}

// RejectFor rejects messages for d.
func (p *Inbox) RejectFor(ctx context.Context, d time.Duration, why string) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	p.RejectUntil(ctx.Done(), why)
}

// RejectUntil rejects messages until done is closed.
func (p *Inbox) RejectUntil(done <-chan struct{}, why string) {
	for {
		p.Reject(why)
		select {
		case <-done:
			return
		case <-p.Messages.Wake():
		}
	}
}

// SetState reports the phase if it is another one.
func (p *Inbox) SetState(phase Phase, detail string) {
	if p.state.Phase == phase {
		return
	}
	p.state = State{Phase: phase, Since: time.Now(), Detail: detail}
	p.Sink.StateChanged(p.state)
}
