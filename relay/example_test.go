package relay_test

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/publish/amqp"
	"github.com/cdc-relay/cdc-relay/relay"
)

// A program that runs a relay beside its own work. `cdc-relay setup` has created the tables, the publication and the
// slot.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.Default()

	config := relay.DefaultConfig()
	config.DatabaseURL = os.Getenv("CDC_RELAY_DATABASE_URL")
	config.Hooks.DeadLettered = func(e relay.Event) {
		log.Error("an order is stuck", "message_id", e.MessageID, "reason", e.Reason, "error", e.LastError)
	}
	publisher, err := amqp.New(amqp.Config{
		URL:         os.Getenv("CDC_RELAY_AMQP_URL"),
		MaxInFlight: config.MaxInFlight,
		SendTimeout: config.SendTimeout,
		Logger:      log,
	})
	if err != nil {
		log.Error("the broker's URL is wrong", "error", err)
		return
	}
	r, err := relay.New(config, publisher, log, prometheus.DefaultRegisterer)
	if err != nil {
		log.Error("the relay cannot be made", "error", err)
		return
	}
	// Run returns when ctx is done and the messages in flight are settled. Until then, r.Health reports the state.
	if err := r.Run(ctx); err != nil {
		log.Error("the relay has ended", "error", err)
	}
}

// A custom publisher can send messages anywhere. This one passes them to a function, one at a time.
func Example_customPublisher() {
	config := relay.DefaultConfig()
	config.DatabaseURL = os.Getenv("CDC_RELAY_DATABASE_URL")
	publisher := newFuncPublisher(config.MaxInFlight, func(m *outbox.Message) error {
		_, err := os.Stdout.Write(append(m.Payload, '\n'))
		return err
	})
	r, err := relay.New(config, publisher, slog.Default(), prometheus.NewRegistry())
	if err != nil {
		return
	}
	_ = r.Run(context.Background())
}

// funcPublisher implements publish.Publisher.
type funcPublisher struct {
	send     func(*outbox.Message) error
	messages chan *outbox.Message

	mu    sync.Mutex
	ended bool         // Run takes no more messages
	sink  publish.Sink // set when Run starts
}

// newFuncPublisher has room for all messages that the relay keeps in flight, so that Publish never blocks.
func newFuncPublisher(maxInFlight int, send func(*outbox.Message) error) *funcPublisher {
	return &funcPublisher{send: send, messages: make(chan *outbox.Message, maxInFlight)}
}

// Publish implements publish.Publisher.
func (p *funcPublisher) Publish(m *outbox.Message) {
	p.mu.Lock()
	ended := p.ended
	if !ended {
		p.messages <- m
	}
	p.mu.Unlock()
	if ended {
		p.sink.Deliver(outbox.Result{Message: m, Outcome: outbox.NotSent})
	}
}

// Run implements publish.Publisher. When it returns, each published message has a result.
func (p *funcPublisher) Run(ctx context.Context, sink publish.Sink) error {
	p.sink = sink
	sink.StateChanged(publish.State{Phase: publish.Connecting, Since: time.Now()})
	sink.StateChanged(publish.State{Phase: publish.Ready, Since: time.Now()})
	for ctx.Err() == nil {
		select {
		case m := <-p.messages:
			sink.Deliver(p.publish(m))
		case <-ctx.Done():
		}
	}
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	for len(p.messages) > 0 {
		sink.Deliver(outbox.Result{Message: <-p.messages, Outcome: outbox.NotSent})
	}
	sink.StateChanged(publish.State{Phase: publish.Closed, Since: time.Now()})
	return nil
}

func (p *funcPublisher) publish(m *outbox.Message) outbox.Result {
	// The message has waited in p.messages, and may have expired there.
	if reason, detail := m.Defect(time.Now()); reason != "" {
		return outbox.Result{Message: m, Outcome: outbox.Impossible, Reason: reason, Detail: detail}
	}
	// m.MayBeKnown reports whether to mark the message as a possible duplicate.
	m.SentAt = time.Now()
	if err := p.send(m); err != nil {
		// Rejected costs an attempt, and after MaxRetries the message becomes a dead letter. An outage costs no attempt:
		// return Unknown if the message may have arrived, else NotSent.
		return outbox.Result{Message: m, Outcome: outbox.Rejected, Reason: "rejected", Detail: err.Error()}
	}
	return outbox.Result{Message: m, Outcome: outbox.Confirmed}
}
