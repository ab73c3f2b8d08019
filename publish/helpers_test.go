package publish

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestMain(m *testing.M) {
	if file := os.Getenv(handlerFile); file != "" {
		beHandler(file)
	}
	services.Main(m)
}

// recorder is a sink that records everything.
type recorder struct {
	mu      sync.Mutex
	change  *sync.Cond
	results map[*outbox.Message][]outbox.Result
	// confirmed counts the confirmed results.
	confirmed int
	states    []State
}

func newRecorder() *recorder {
	r := &recorder{results: make(map[*outbox.Message][]outbox.Result)}
	r.change = sync.NewCond(&r.mu)
	return r
}

func (r *recorder) Deliver(result outbox.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results[result.Message] = append(r.results[result.Message], result)
	if result.Outcome == outbox.Confirmed {
		r.confirmed++
	}
	r.change.Broadcast()
}

func (r *recorder) StateChanged(s State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states = append(r.states, s)
	r.change.Broadcast()
}

// await waits until the condition holds; it is called with the lock held.
func (r *recorder) await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	expired := false
	timer := time.AfterFunc(await.Hang(), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		expired = true
		r.change.Broadcast()
	})
	defer timer.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for !holds() {
		if expired {
			t.Fatalf("waited %v for %s; states %v, %d results", await.Hang(), what, r.states, len(r.results))
		}
		r.change.Wait()
	}
}

func (r *recorder) phase() Phase {
	if len(r.states) == 0 {
		return 0
	}
	return r.states[len(r.states)-1].Phase
}

func (r *recorder) awaitPhase(t *testing.T, phase Phase) {
	t.Helper()
	r.await(t, phase.String(), func() bool { return r.phase() == phase })
}

// mark is a point in the history of states.
func (r *recorder) mark() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.states)
}

// awaitSince waits for a phase after a mark.
func (r *recorder) awaitSince(t *testing.T, mark int, phase Phase) {
	t.Helper()
	r.await(t, phase.String(), func() bool {
		for _, s := range r.states[mark:] {
			if s.Phase == phase {
				return true
			}
		}
		return false
	})
}

// countSince returns how often a phase began since a mark.
func (r *recorder) countSince(mark int, phase Phase) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for i := mark; i < len(r.states); i++ {
		if r.states[i].Phase == phase && (i == 0 || r.states[i-1].Phase != phase) {
			n++
		}
	}
	return n
}

// awaitResults waits for the result of each message and returns it.
func (r *recorder) awaitResults(t *testing.T, messages ...*outbox.Message) []outbox.Result {
	t.Helper()
	r.await(t, fmt.Sprintf("the results of %d messages", len(messages)), func() bool {
		for _, m := range messages {
			if len(r.results[m]) == 0 {
				return false
			}
		}
		return true
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	results := make([]outbox.Result, len(messages))
	for i, m := range messages {
		results[i] = r.results[m][0]
	}
	return results
}

// publishUntilConfirmed publishes messages, and copies of those that got no answer, as the relay would: a busy broker may
// take longer than the short send timeout of a test. It returns all results.
func (r *running) publishUntilConfirmed(t *testing.T, messages ...*outbox.Message) (results []outbox.Result) {
	t.Helper()
	for round := 0; len(messages) > 0; round++ {
		if round == 20 {
			t.Fatalf("%d messages are not confirmed in %d rounds, the last because %s", len(messages), round, results[len(results)-1].Detail)
		}
		r.awaitPhase(t, Ready)
		r.publish(messages...)
		var again []*outbox.Message
		for _, result := range r.awaitResults(t, messages...) {
			results = append(results, result)
			switch result.Outcome {
			case outbox.Confirmed:
			case outbox.NotSent, outbox.Unknown:
				m := *result.Message
				m.PossibleDuplicate = m.PossibleDuplicate || result.MayHaveArrived()
				again = append(again, &m)
			default:
				t.Errorf("message %d: %s (%s)", result.Message.ID, result.Outcome, result.Detail)
			}
		}
		messages = again
	}
	return results
}

// checkOnce fails if a message has more or less than one result.
func (r *recorder) checkOnce(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for m, results := range r.results {
		if len(results) != 1 {
			t.Errorf("message %d has %d results: %v", m.ID, len(results), results)
		}
	}
}

// count returns how many results have the outcome.
func count(results []outbox.Result, outcome outbox.Outcome) int {
	n := 0
	for _, r := range results {
		if r.Outcome == outcome {
			n++
		}
	}
	return n
}

func allAre(t *testing.T, results []outbox.Result, outcome outbox.Outcome) {
	t.Helper()
	for _, r := range results {
		if r.Outcome != outcome {
			t.Errorf("message %d: %v (%s: %s), want %v", r.Message.ID, r.Outcome, r.Reason, r.Detail, outcome)
		}
	}
}

// maker makes messages with new ids.
type maker struct{ id int64 }

func (k *maker) make(exchange, key, payload string) *outbox.Message {
	k.id++
	m := &outbox.Message{
		ID: k.id, RoutingKey: key, Payload: []byte(payload), Exchange: &exchange,
		SchemaVersion: 1, CreatedAt: time.Unix(1_700_000_000+k.id, 0),
		// On a slow machine, the time from here to the write must not look like a process that stood still. Tests of the
		// mark set their own time.
		TakenAt: time.Now().Add(time.Hour),
	}
	copy(m.MessageID[:], fmt.Sprintf("%016d", k.id))
	return m
}

func (k *maker) many(n int, exchange, key string) []*outbox.Message {
	messages := make([]*outbox.Message, n)
	for i := range messages {
		messages[i] = k.make(exchange, key, fmt.Sprintf(`{"n": %d}`, i))
	}
	return messages
}

// running is a publisher that runs.
type running struct {
	Publisher
	*recorder
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// start runs a publisher until the test ends or stop is called.
func start(t *testing.T, p Publisher) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Publisher: p, recorder: newRecorder(), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = p.Run(ctx, r.recorder)
	}()
	t.Cleanup(func() {
		r.stop(t)
		r.checkOnce(t)
	})
	return r
}

func (r *running) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	await.Receive(t, "Run returns", r.done)
}

func (r *running) publish(messages ...*outbox.Message) {
	for _, m := range messages {
		r.Publish(m)
	}
}

// startAMQP runs an AMQP publisher until it is ready.
func startAMQP(t *testing.T, cfg AMQPConfig) *running {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	p, err := NewAMQP(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, p)
	r.awaitPhase(t, Ready)
	return r
}

// admin is the test's own connection.
type admin struct {
	t       *testing.T
	channel *amqp.Channel
}

func newAdmin(t *testing.T, url string) *admin {
	t.Helper()
	connection := services.DialAMQP(t, url)
	channel, err := connection.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return &admin{t: t, channel: channel}
}

func (a *admin) queue(name string, args amqp.Table) string {
	a.t.Helper()
	if _, err := a.channel.QueueDeclare(name, true, false, false, false, args); err != nil {
		a.t.Fatal(err)
	}
	return name
}

// exchange declares an exchange with one queue that receives everything.
func (a *admin) exchange(name, kind, queue, key string) {
	a.t.Helper()
	if err := a.channel.ExchangeDeclare(name, kind, true, false, false, false, nil); err != nil {
		a.t.Fatal(err)
	}
	if queue == "" {
		return
	}
	a.queue(queue, nil)
	if err := a.channel.QueueBind(queue, key, name, false, nil); err != nil {
		a.t.Fatal(err)
	}
}

// drain removes and returns all messages of a queue.
func (a *admin) drain(queue string) []amqp.Delivery {
	a.t.Helper()
	var all []amqp.Delivery
	for {
		d, ok, err := a.channel.Get(queue, true)
		if err != nil {
			a.t.Fatal(err)
		}
		if !ok {
			return all
		}
		all = append(all, d)
	}
}

// checkArrived fails if a confirmed message is not in the queue, or is there twice without the mark.
func checkArrived(t *testing.T, results []outbox.Result, deliveries []amqp.Delivery) {
	t.Helper()
	arrived := make(map[string]int)
	unmarked := make(map[string]int)
	for _, d := range deliveries {
		arrived[d.MessageId]++
		if d.Headers[outbox.PossibleDuplicateHeader] != true {
			unmarked[d.MessageId]++
		}
	}
	for _, r := range results {
		id := r.Message.MessageID.String()
		if r.Outcome == outbox.Confirmed && arrived[id] == 0 {
			t.Errorf("message %d was confirmed and did not arrive", r.Message.ID)
		}
		if unmarked[id] > 1 {
			t.Errorf("message %d arrived %d times without the mark", r.Message.ID, unmarked[id])
		}
	}
}

// behindProxy returns a queue of the shared broker, and an address that reaches the broker through a proxy. The admin
// connects directly.
func behindProxy(t *testing.T) (a *admin, queue string, proxy *services.Proxy, url string) {
	t.Helper()
	broker := services.SharedRabbitMQ(t)
	vhost := broker.VHost(t)
	a = newAdmin(t, vhost)
	proxy = services.NewProxy(t, broker.Addr())
	return a, a.queue(services.Name(t), nil), proxy, withHost(t, vhost, proxy.Addr())
}

// withHost returns the URL with another host:port.
func withHost(t *testing.T, raw, host string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = host
	return u.String()
}
