// Package notice publishes a small notice for each message that was published, rejected or dead-lettered. It has its
// own connection, so that notices never delay messages.
package notice

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/relay"
)

// MaxInFlight is how many notices may be in flight. Configure the publisher with the same number.
const MaxInFlight = 2000

// Notices sends notices, each at most once. A notice that is rejected or cannot be sent is counted and dropped.
type Notices struct {
	publisher publish.Publisher
	// exchange receives the notices; defaultExchange is the exchange of messages that name none.
	exchange, defaultExchange string
	log                       *slog.Logger

	counts   *prometheus.CounterVec
	inFlight atomic.Int64

	mu struct {
		sync.Mutex
		ready bool // the publisher is connected
		// changed is closed and replaced when ready changes.
		changed chan struct{}
	}
}

// New registers the counter with the registry. Run runs and stops the publisher.
func New(
	publisher publish.Publisher, exchange, defaultExchange string, log *slog.Logger, registry prometheus.Registerer,
) (*Notices, error) {
	n := &Notices{
		publisher: publisher, exchange: exchange, defaultExchange: defaultExchange, log: log,
		counts: NewCounter(),
	}
	n.mu.changed = make(chan struct{})
	if err := registry.Register(n.counts); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return n, nil
}

// NewCounter counts notices by outcome.
func NewCounter() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cdc_relay_event_notices_total",
		Help: "Notices of events: confirmed, rejected by RabbitMQ, unknown (sent, confirm lost), or dropped.",
	}, []string{"event", "outcome"})
}

// Kind is what happened to a message.
type Kind string

// The kinds of notices.
const (
	Published    Kind = "published"
	Rejected     Kind = "rejected"
	DeadLettered Kind = "dead_lettered"
)

// Kinds returns all kinds.
func Kinds() []string { return []string{string(Published), string(Rejected), string(DeadLettered)} }

// body is the JSON body of a notice.
type body struct {
	Event      Kind          `json:"event"`
	ID         int64         `json:"id"`
	MessageID  outbox.UUID   `json:"message_id"`
	Exchange   string        `json:"exchange"`
	RoutingKey string        `json:"routing_key"`
	Reason     outbox.Reason `json:"reason,omitempty"`
	LastError  string        `json:"last_error,omitempty"`
	Attempts   int           `json:"attempts"`
	At         time.Time     `json:"at"`
	// PossibleDuplicate: the message carried the mark.
	PossibleDuplicate bool              `json:"possible_duplicate"`
	Headers           map[string]string `json:"headers,omitempty"`
}

// timeout is how long a notice waits for a connection.
const timeout = 5 * time.Second

// Hook returns a function for relay.Hooks that sends notices of one kind.
func (n *Notices) Hook(kind Kind) func(relay.Event) {
	return func(e relay.Event) { n.send(kind, e) }
}

// send waits for the connection, up to timeout.
func (n *Notices) send(kind Kind, e relay.Event) {
	n.awaitReady()
	if n.inFlight.Add(1) > MaxInFlight {
		n.inFlight.Add(-1)
		n.counts.WithLabelValues(string(kind), "dropped").Inc()
		n.complain("event notices dropped: too many are in flight; messages unaffected",
			fmt.Sprintf("%d notices wait for their confirm", MaxInFlight),
			"# choose fewer events in --events")
		return
	}
	n.publisher.Publish(n.message(kind, e))
}

// awaitReady returns when the publisher is connected, or after timeout. The publisher then drops the notice.
func (n *Notices) awaitReady() {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		n.mu.Lock()
		ready, changed := n.mu.ready, n.mu.changed
		n.mu.Unlock()
		if ready {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		}
	}
}

// message shortens names that AMQP cannot carry: they may be why the message is a dead letter.
func (n *Notices) message(kind Kind, e relay.Event) *outbox.Message {
	exchange := n.defaultExchange
	if e.Exchange != nil {
		exchange = *e.Exchange
	}
	text, err := json.Marshal(body{
		Event:             kind,
		ID:                e.ID,
		MessageID:         e.MessageID,
		Exchange:          outbox.Shortened(exchange),
		RoutingKey:        outbox.Shortened(e.RoutingKey),
		Reason:            e.Reason,
		LastError:         e.LastError,
		Attempts:          e.Attempts,
		At:                e.At.UTC(),
		PossibleDuplicate: e.PossibleDuplicate,
		Headers:           e.Headers,
	})
	if err != nil {
		panic(err) // all fields can be written as JSON
	}
	return &outbox.Message{
		Row: outbox.Row{
			ID:            e.ID,
			MessageID:     e.MessageID,
			Exchange:      &n.exchange,
			RoutingKey:    outbox.Shortened(e.RoutingKey),
			SchemaVersion: outbox.SchemaVersion,
			Payload:       text,
			Properties:    propertiesOf(kind),
			CreatedAt:     e.At,
		},
	}
}

// propertiesOf stores the kind as the AMQP type. kindOf reads it.
func propertiesOf(kind Kind) []byte { return []byte(`{"type": "` + string(kind) + `"}`) }

func kindOf(m *outbox.Message) string {
	return strings.TrimSuffix(strings.TrimPrefix(string(m.Properties), `{"type": "`), `"}`)
}

// grace is how long Run waits for notices in flight at the end.
const grace = time.Second

// Run sends notices until ctx is done, and then waits up to a second for notices in flight. While the broker is down,
// it reconnects and drops notices.
func (n *Notices) Run(ctx context.Context) error {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- n.publisher.Run(running, sink{n}) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	n.await()
	stop()
	return <-ended
}

// await waits until nothing is in flight, at most for grace.
func (n *Notices) await() {
	deadline := time.NewTimer(grace)
	defer deadline.Stop()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for n.inFlight.Load() > 0 {
		select {
		case <-deadline.C:
			return
		case <-ticker.C:
		}
	}
}

// sink receives the publisher's reports.
type sink struct{ *Notices }

// StateChanged implements publish.Sink. The publisher logs the changes itself.
func (s sink) StateChanged(state publish.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.ready = state.Phase == publish.Ready
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
}

// Deliver implements publish.Sink.
func (s sink) Deliver(r outbox.Result) {
	s.inFlight.Add(-1)
	outcome := "rejected"
	switch r.Outcome {
	case outbox.Confirmed:
		outcome = "confirmed"
	case outbox.Unknown:
		outcome = "unknown"
	case outbox.NotSent:
		outcome = "dropped"
		s.complain("event notice lost: no connection to RabbitMQ; messages unaffected", r.Detail,
			"# see the events broker_down and broker_blocked")
	default:
		s.complain("event notice lost: rejected by RabbitMQ; messages unaffected", string(r.Reason)+": "+r.Detail,
			"cdc-relay check --events-exchange "+problem.ShellWord(s.exchange)+
				"  # if it finds nothing, bind a queue to the exchange")
	}
	s.counts.WithLabelValues(kindOf(r.Message), outcome).Inc()
}

func (n *Notices) complain(what, why, hint string) {
	n.log.Warn(what, "event", event.NoticeLost, "exchange", n.exchange, "error", why, "hint", hint)
}
