package amqp

import (
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// behindProxyWithFullQueue also returns a queue that rejects every message.
func behindProxyWithFullQueue(t *testing.T) (takes, full string, proxy *services.Proxy, url string) {
	t.Helper()
	a, takes, proxy, url := behindProxy(t)
	full = a.queue(services.Name(t), amqp091.Table{"x-max-length": int32(0), "x-overflow": "reject-publish"})
	return takes, full, proxy, url
}

// reconnect cuts the connection, and waits for the next one.
func (r *running) reconnect(t *testing.T, proxy *services.Proxy) {
	t.Helper()
	mark := r.Mark()
	proxy.Cut()
	r.AwaitSince(t, mark, publish.Connecting)
	r.AwaitSince(t, mark, publish.Ready)
}

func (r *running) outcome(t *testing.T, m *outbox.Message) outbox.Outcome {
	t.Helper()
	r.PublishAll(m)
	return r.AwaitResults(t, m)[0].Outcome
}

// A quorum queue without a leader rejects messages like a full queue. So rejections cost no attempt after an outage,
// until RabbitMQ has confirmed a message.
func TestARejectionRightAfterAnOutageCostsNoAttempt(t *testing.T) {
	t.Parallel()
	takes, full, proxy, url := behindProxyWithFullQueue(t)
	r := startAMQP(t, Config{URL: url, SendTimeout: time.Hour})
	var k publishtest.Maker
	if got := r.outcome(t, k.Make("", full, `{}`)); got != outbox.Rejected {
		t.Errorf("on the first connection: %s, want a rejection", got)
	}
	for range 2 {
		r.reconnect(t, proxy)
		if got := r.outcome(t, k.Make("", full, `{}`)); got != outbox.Unknown {
			t.Errorf("after an outage: %s, want unknown", got)
		}
		if got := r.outcome(t, k.Make("", takes, `{}`)); got != outbox.Confirmed {
			t.Errorf("to a queue with room: %s, want a confirm", got)
		}
		if got := r.outcome(t, k.Make("", full, `{}`)); got != outbox.Rejected {
			t.Errorf("after a confirm: %s, want a rejection", got)
		}
	}
}

// If RabbitMQ confirms nothing within the send timeout, its rejections count.
func TestRejectionsCountAgainAfterTheSendTimeout(t *testing.T) {
	t.Parallel()
	_, full, proxy, url := behindProxyWithFullQueue(t)
	r := startAMQP(t, Config{URL: url, SendTimeout: await.Scaled(time.Second)})
	r.reconnect(t, proxy)
	var k publishtest.Maker
	await.Until(t, "a rejection counts", func() bool { return r.outcome(t, k.Make("", full, `{}`)) == outbox.Rejected })
}
