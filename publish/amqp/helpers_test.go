package amqp

import (
	"context"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"sync"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// running is a publisher that runs.
type running struct{ *publishtest.Running }

// publishUntilConfirmed publishes messages until all are confirmed: a busy broker may take longer than the short send
// timeout of a test. It returns all results.
func (r *running) publishUntilConfirmed(t *testing.T, messages ...*outbox.Message) []outbox.Result {
	t.Helper()
	certain, all := r.Settle(t, messages, nil, nil)
	publishtest.AllAre(t, slices.Collect(maps.Values(certain)), outbox.Confirmed)
	return all
}

func start(t *testing.T, p publish.Publisher) *running {
	t.Helper()
	return &running{publishtest.Start(t, p)}
}

func startAMQP(t *testing.T, cfg Config) *running {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	p, err := New(cfg)
	must(t, err)
	r := start(t, p)
	r.AwaitPhase(t, publish.Ready)
	return r
}

// admin is the test's own connection.
type admin struct {
	t       *testing.T
	channel *amqp091.Channel
}

func newAdmin(t *testing.T, url string) *admin {
	t.Helper()
	connection := services.DialAMQP(t, url)
	channel, err := connection.Channel()
	must(t, err)
	return &admin{t: t, channel: channel}
}

// withQueue returns a virtual host of the shared broker, and a queue there.
func withQueue(t *testing.T) (url string, a *admin, queue string) {
	t.Helper()
	url = services.VHost(t)
	a = newAdmin(t, url)
	return url, a, a.queue(services.Name(t), nil)
}

// withExchange also returns an exchange, bound to the queue.
func withExchange(t *testing.T, kind, key string) (url string, a *admin, exchange, queue string) {
	t.Helper()
	url, a, queue = withQueue(t)
	exchange = queue + "_x"
	a.exchange(exchange, kind, queue, key)
	return url, a, exchange, queue
}

// publishing returns a publisher that is ready, and a queue.
func publishing(t *testing.T) (a *admin, queue string, r *running) {
	t.Helper()
	u, a, queue := withQueue(t)
	return a, queue, startAMQP(t, Config{URL: u})
}

func (a *admin) queue(name string, args amqp091.Table) string {
	a.t.Helper()
	_, err := a.channel.QueueDeclare(name, true, false, false, false, args)
	must(a.t, err)
	return name
}

// exchange declares an exchange with one queue that receives everything.
func (a *admin) exchange(name, kind, queue, key string) {
	a.t.Helper()
	must(a.t, a.channel.ExchangeDeclare(name, kind, true, false, false, false, nil))
	if queue == "" {
		return
	}
	a.queue(queue, nil)
	must(a.t, a.channel.QueueBind(queue, key, name, false, nil))
}

func (a *admin) drain(queue string) []amqp091.Delivery {
	a.t.Helper()
	var all []amqp091.Delivery
	for {
		d, ok, err := a.channel.Get(queue, true)
		must(a.t, err)
		if !ok {
			return all
		}
		all = append(all, d)
	}
}

// checkArrived fails if a confirmed message is not in the queue, or is there twice without the mark.
func checkArrived(t *testing.T, results []outbox.Result, deliveries []amqp091.Delivery) {
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

// behindFrames returns a proxy to the shared broker, and the URL with its address.
func behindFrames(t *testing.T, url string) (frames *services.Frames, behind string) {
	t.Helper()
	frames = services.NewFrames(t, services.SharedRabbitMQ(t).Addr(), nil)
	return frames, withHost(t, url, frames.Addr())
}

// ctl runs rabbitmqctl.
func ctl(t *testing.T, broker *services.RabbitMQ, args ...string) (output string) {
	t.Helper()
	output, err := broker.Ctl(context.Background(), args...)
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return output
}

func withHost(t *testing.T, raw, host string) string {
	t.Helper()
	u, err := url.Parse(raw)
	must(t, err)
	u.Host = host
	return u.String()
}

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

func TestThePublisherFulfilsTheContract(t *testing.T) {
	publishtest.Contract(t, func(t *testing.T) publishtest.Subject {
		url, a, exchange, queue := withExchange(t, "direct", "k")
		p, err := New(Config{URL: url})
		must(t, err)
		arrived := func() []publishtest.Seen {
			var all []publishtest.Seen
			for _, d := range a.drain(queue) {
				mark, _ := d.Headers[outbox.PossibleDuplicateHeader].(bool)
				all = append(all, publishtest.Seen{
					MessageID: d.MessageId, RoutingKey: d.RoutingKey, Body: string(d.Body),
					Duplicate: mark, Expiration: d.Expiration,
				})
			}
			return all
		}
		return publishtest.Subject{Publisher: p, Exchange: exchange, Key: "k", Nowhere: "nowhere", Arrived: arrived}
	})
}

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

func (f *flow) end(t *testing.T) []outbox.Result {
	t.Helper()
	close(f.stop)
	f.r.Mu.Lock()
	f.r.Change.Broadcast()
	f.r.Mu.Unlock()
	f.done.Wait()
	return f.r.AwaitResults(t, f.messages...)
}

func awaitConfirms(t *testing.T, r *running, n int) {
	t.Helper()
	r.Mu.Lock()
	want := r.Confirmed + n
	r.Mu.Unlock()
	r.Await(t, "confirms", func() bool { return r.Confirmed >= want })
}
