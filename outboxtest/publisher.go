package outboxtest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/signal"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
)

// Publisher implements publish.Publisher without a broker, for tests of a program that embeds the relay. It keeps the
// messages it receives. Create it with NewPublisher.
type Publisher struct {
	answer func(*outbox.Message) outbox.Result
	wake   signal.Signal

	mu       sync.Mutex
	queue    []*outbox.Message
	ended    bool
	sink     publish.Sink // set when Run starts
	messages []outbox.Message
}

// NewPublisher creates a publisher. answer returns the result for each message; the publisher fills in Message. answer
// is called by one goroutine at a time, in the order of Publish. The zero Outcome means Confirmed. A nil answer
// confirms every message.
func NewPublisher(answer func(*outbox.Message) outbox.Result) *Publisher {
	if answer == nil {
		answer = func(*outbox.Message) outbox.Result { return outbox.Result{} }
	}
	return &Publisher{answer: answer, wake: signal.New()}
}

// Messages returns the messages that have a result so far, also those that were not confirmed, in order.
// PossibleDuplicate: the message would have carried the mark.
func (p *Publisher) Messages() []outbox.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.messages)
}

// Publish implements publish.Publisher.
func (p *Publisher) Publish(m *outbox.Message) {
	p.mu.Lock()
	ended, sink := p.ended, p.sink
	if !ended {
		p.queue = append(p.queue, m)
	}
	p.mu.Unlock()
	if ended {
		sink.Deliver(outbox.Result{Message: m, Outcome: outbox.NotSent})
		return
	}
	p.wake.Send()
}

// Run implements publish.Publisher.
func (p *Publisher) Run(ctx context.Context, sink publish.Sink) error {
	p.mu.Lock()
	p.sink = sink
	p.mu.Unlock()
	state := func(phase publish.Phase) { sink.StateChanged(publish.State{Phase: phase, Since: time.Now()}) }
	state(publish.Connecting)
	p.reject(false, "the publisher is starting")
	state(publish.Ready)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-p.wake:
			for _, m := range p.take(false) {
				sink.Deliver(p.publish(m))
			}
		}
	}
	state(publish.Closed)
	p.reject(true, "the publisher has ended")
	return nil
}

// take returns the waiting messages. After the last call, Publish rejects messages.
func (p *Publisher) take(last bool) []*outbox.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	queue := p.queue
	p.queue, p.ended = nil, last
	return queue
}

func (p *Publisher) reject(last bool, why string) {
	for _, m := range p.take(last) {
		p.sink.Deliver(outbox.Result{Message: m, Outcome: outbox.NotSent, Detail: why})
	}
}

func (p *Publisher) publish(m *outbox.Message) outbox.Result {
	if reason, detail := m.Defect(time.Now()); reason != "" {
		return outbox.Result{Message: m, Outcome: outbox.Impossible, Reason: reason, Detail: detail}
	}
	sent := *m // the relay continues to use its own
	sent.PossibleDuplicate = m.MayBeKnown()
	m.SentAt = time.Now()
	result := p.answer(&sent)
	result.Message = m
	if result.Outcome == 0 {
		result.Outcome = outbox.Confirmed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.messages = append(p.messages, sent)
	return result
}
