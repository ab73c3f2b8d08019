package amqp

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// free reports whether a result costs no attempt, and is tried again soon.
func free(r outbox.Result) bool {
	return r.Outcome == outbox.NotSent && r.RetryIn > 0 && r.RetryIn <= latestRetry
}

// Consumers declare transient queues and exchanges again only after they have found the broker again themselves.
func TestAMissingRouteRightAfterAnOutageCostsNoAttempt(t *testing.T) {
	t.Parallel()
	takes, _, proxy, url := behindProxyWithFullQueue(t)
	r := startAMQP(t, Config{URL: url})
	var k publishtest.Maker
	for _, target := range [][2]string{{"", "no.such.queue"}, {"amq.topic", "no.such.key"}, {"no.such.exchange", "k"}} {
		publish := func() outbox.Result {
			m := k.Make(target[0], target[1], `{}`)
			return r.Answers(t, m)[0]
		}
		if got := publish(); got.Outcome != outbox.Rejected {
			t.Errorf("%s on the first connection: %+v, want a rejection", target, got)
		}
		r.reconnect(t, proxy)
		if got := r.outcome(t, k.Make("", takes, `{}`)); got != outbox.Confirmed {
			t.Errorf("another queue: %s", got)
		}
		if got := publish(); !free(got) {
			t.Errorf("%s after an outage: %+v, want a free retry", target, got)
		}
		p := r.Publisher.(*Publisher)
		p.missing.restored.Store(time.Now().Add(-returnsWithin).UnixNano())
		if got := publish(); got.Outcome != outbox.Rejected {
			t.Errorf("%s long after the outage: %+v, want a rejection", target, got)
		}
	}
}

// RabbitMQ has no route to a classic queue whose node is down, but says that the queue exists. The connection survives.
func TestAQueueOfAStoppedNodeCostsNoAttempt(t *testing.T) {
	services.Thorough(t, "starts two brokers, and one of them again")
	t.Parallel()
	cluster := services.PrivateRabbitMQCluster(t, 2)
	up, down := cluster.Nodes[0], cluster.Nodes[1]
	vhost := services.Name(t)
	must(t, up.AddVHost(t.Context(), vhost))
	newAdmin(t, down.URL(vhost)).queue("classic", nil)
	r := startAMQP(t, Config{URL: up.URL(vhost)})
	var k publishtest.Maker
	publish := func(queue string) outbox.Result {
		m := k.Make("", queue, `{}`)
		return r.Answers(t, m)[0]
	}
	must(t, down.Stop(t.Context()))
	if got := publish("classic"); !free(got) || !strings.Contains(got.Detail, "is down or inaccessible") {
		t.Errorf("while the node is down: %+v, want a free retry", got)
	}
	if got := publish("no.such.queue"); got.Outcome != outbox.Rejected {
		t.Errorf("a queue that nobody declared: %+v, want a rejection", got)
	}
	must(t, down.Start(t.Context()))
	await.Until(t, "the queue takes messages again", func() bool { return publish("classic").Outcome == outbox.Confirmed })
}

// A relay that knows several nodes asks them about routes of exchanges, of which RabbitMQ says nothing.
func TestAMissingRouteCostsNoAttemptWhileANodeOfTheAddressIsDown(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	other := services.NewProxy(t, broker.Addr())
	url := withHost(t, broker.VHost(t), broker.Addr()+","+other.Addr())
	var k publishtest.Maker
	publish := func() outbox.Result {
		m := k.Make("amq.topic", "no.such.key", `{}`)
		r := startAMQP(t, Config{URL: url})
		return r.Answers(t, m)[0]
	}
	if got := publish(); got.Outcome != outbox.Rejected {
		t.Errorf("while all nodes are up: %+v, want a rejection", got)
	}
	other.Close()
	if got := publish(); !free(got) {
		t.Errorf("while a node is down: %+v, want a free retry", got)
	}
	// Each try costs Postgres an UPDATE, so many messages are not tried again at the same time.
	r, many := startAMQP(t, Config{URL: url}), k.Many(500, "amq.topic", "no.such.key")
	began := time.Now()
	r.PublishAll(many...)
	var last time.Duration
	for _, got := range r.AwaitResults(t, many...) {
		if last = max(last, got.RetryIn); !free(got) {
			t.Fatalf("many messages while a node is down: %+v, want free retries", got)
		}
	}
	if all := time.Since(began) + last; all < 500*excusedEvery {
		t.Errorf("500 messages are tried again within %s", all)
	}
}

// A node that never returns does not excuse missing routes for ever.
func TestANodeThatNeverReturnsExcusesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := make(answers)
		down := func() bool {
			nodes.learn("a", "down")
			why, _ := nodes.anyDown()
			return why != ""
		}
		for began := time.Now(); down(); time.Sleep(latestRetry) {
			if time.Since(began) > mostOutage {
				t.Fatal("it still excuses missing routes")
			}
		}
		if time.Sleep(time.Minute); down() {
			t.Error("it excuses missing routes again")
		}
		if nodes.learn("a", ""); !down() {
			t.Error("it was up, and does not count as down")
		}
	})
}

// Each message without a place gets a later time, so that they do not all come at once.
func TestMessagesWithoutAPlaceComeOneAfterTheOther(t *testing.T) {
	p := newPlaces(80)
	p.pace = time.Second
	m, now := &outbox.Message{}, time.Now()
	last, back := time.Duration(0), 0
	for range 80 {
		taken, retryIn := p.take(m, now)
		if taken {
			continue
		}
		if back++; retryIn < last || retryIn < soonest || retryIn > latest {
			t.Errorf("%s after %s", retryIn, last)
		}
		last = retryIn
	}
	if p.messages != 30 || back != 50 {
		t.Errorf("%d messages have a place and %d went back, want three eighths of 80", p.messages, back)
	}
	if last < latest-time.Second {
		t.Errorf("the last of 50 comes after %s", last)
	}
	p.leave(m)
	if taken, _ := p.take(m, now); !taken {
		t.Error("a free place was not given")
	}
}

func TestTheBytesThatWaitAreBounded(t *testing.T) {
	p := newPlaces(80)
	p.pace = time.Second
	take := func(m *outbox.Message) bool {
		taken, _ := p.take(m, time.Now())
		return taken
	}
	large := &outbox.Message{Row: outbox.Row{Payload: make([]byte, 20<<20)}}
	if !take(large) {
		t.Error("a message larger than the share never gets a place")
	}
	if take(&outbox.Message{}) {
		t.Error("a place beside it was given")
	}
	if p.leave(large); !take(&outbox.Message{}) {
		t.Error("a free place was not given")
	}
}
