// Package notice tells an exchange of events: one small message for each message that was published, rejected or
// dead-lettered. It has a connection of its own, so that notices never delay messages.
package notice

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/relay"
)

// MaxInFlight is how many notices may be on their way; the publisher is made for it.
const MaxInFlight = 2000

// Notices sends them. A notice is sent at most once: what the broker rejects, and what
// cannot be sent at the time, is counted and forgotten.
type Notices struct {
	publisher publish.Publisher
	// exchange gets the notices; defaultExchange is where messages went that named none.
	exchange, defaultExchange string
	log                       *slog.Logger
	complaints                *rate.Limiter

	counts   *prometheus.CounterVec
	inFlight atomic.Int64

	mu struct {
		sync.Mutex
		ready bool // the publisher takes messages
		// changed is closed and replaced when ready changes.
		changed chan struct{}
	}
}

// New makes it; the publisher is run, and stopped, by Run. The counter is registered with
// the registry.
func New(publisher publish.Publisher, exchange, defaultExchange string, log *slog.Logger, registry prometheus.Registerer) (*Notices, error) {
	counts := NewCounter()
	if err := registry.Register(counts); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	n := &Notices{
		publisher: publisher, exchange: exchange, defaultExchange: defaultExchange, log: log,
		complaints: rate.NewLimiter(rate.Every(time.Minute), 1), counts: counts,
	}
	n.mu.changed = make(chan struct{})
	return n, nil
}

// NewCounter counts notices by what became of them.
func NewCounter() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cdc_relay_event_notices_total",
		Help: "Notices of events: confirmed, rejected by the broker, unknown (sent, confirm lost), or dropped.",
	}, []string{"event", "outcome"})
}

// Kind is what has happened to a message.
type Kind string

// The kinds.
const (
	Published    Kind = "published"
	Rejected     Kind = "rejected"
	DeadLettered Kind = "dead_lettered"
)

// Kinds are all of them.
func Kinds() []string { return []string{string(Published), string(Rejected), string(DeadLettered)} }

// body is that of a notice.
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
	PossibleDuplicate bool `json:"possible_duplicate"`
}

// timeout is how long a notice waits for a connection.
const timeout = 5 * time.Second

// Hook sends the notices of one kind: it is one of relay.Hooks.
func (n *Notices) Hook(kind Kind) func(relay.Event) {
	return func(e relay.Event) { n.send(kind, e) }
}

// send waits a while for a connection if there is none.
func (n *Notices) send(kind Kind, e relay.Event) {
	n.awaitReady()
	if n.inFlight.Add(1) > MaxInFlight {
		n.inFlight.Add(-1)
		n.counts.WithLabelValues(string(kind), "dropped").Inc()
		n.complain("event notices dropped: too many are in flight", "")
		return
	}
	n.publisher.Publish(n.message(kind, e))
}

// awaitReady returns when the publisher takes messages, or after timeout:
// then the publisher drops the notice.
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

// message shortens names that AMQP cannot carry: that may be why it is a dead letter.
func (n *Notices) message(kind Kind, e relay.Event) *outbox.Message {
	exchange := n.defaultExchange
	if e.Exchange != nil {
		exchange = *e.Exchange
	}
	text, err := json.Marshal(body{
		Event: kind, ID: e.ID, MessageID: e.MessageID, Exchange: outbox.Shortened(exchange), RoutingKey: outbox.Shortened(e.RoutingKey),
		Reason: e.Reason, LastError: e.LastError, Attempts: e.Attempts, At: e.At.UTC(), PossibleDuplicate: e.PossibleDuplicate,
	})
	if err != nil {
		panic(err) // there is nothing in it that JSON does not have
	}
	return &outbox.Message{
		ID: e.ID, MessageID: e.MessageID, Exchange: &n.exchange, RoutingKey: outbox.Shortened(e.RoutingKey),
		SchemaVersion: outbox.SchemaVersion, Payload: text, Properties: propertiesOf(kind), CreatedAt: e.At,
	}
}

// propertiesOf name the kind. kindOf finds it again.
func propertiesOf(kind Kind) []byte { return []byte(`{"type": "` + string(kind) + `"}`) }

func kindOf(m *outbox.Message) string {
	for _, kind := range Kinds() {
		if string(m.Properties) == string(propertiesOf(Kind(kind))) {
			return kind
		}
	}
	return ""
}

// grace is how long notices that are on their way are waited for at the end.
const grace = time.Second

// Run connects and sends until ctx is done, and what is on its way then for a second. An
// outage of the broker is waited out; meanwhile notices are dropped.
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

// await waits until nothing is in flight, or the grace is over.
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

// sink takes what the publisher reports.
type sink struct{ *Notices }

// StateChanged implements publish.Sink; the publisher logs what it is about.
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
		s.complain("event notice dropped: no connection to the broker", r.Detail)
	default:
		s.complain("event notice rejected by the broker", string(r.Reason)+": "+r.Detail)
	}
	s.counts.WithLabelValues(kindOf(r.Message), outcome).Inc()
}

// complain logs at most once a minute; all are counted.
func (n *Notices) complain(what, why string) {
	if n.complaints.Allow() {
		n.log.Warn(what, "event", event.NoticeLost, "exchange", n.exchange, "error", why)
	}
}
