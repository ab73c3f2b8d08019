package amqp

import (
	"slices"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// After an outage, one message goes first. While it has no answer, the next one follows only after half of the send
// timeout, a second at most. After an answer, the others follow.
func TestAHalfOpenBreakerSendsOneMessageAtATime(t *testing.T) {
	broker := services.SharedRabbitMQ(t)
	vhost := broker.VHost(t)
	a := newAdmin(t, vhost)
	q := a.queue(services.Name(t), nil)
	frames := services.NewFrames(t, broker.Addr()) // all but confirms pass it, so that the channel opens
	proxy := services.NewProxy(t, frames.Addr())
	timeout := await.Scaled(time.Second)
	r := startAMQP(t, Config{URL: withHost(t, vhost, proxy.Addr()), SendTimeout: timeout})
	proxy.Refuse()
	proxy.Cut()
	r.AwaitPhase(t, publish.Paused)
	proxy.Accept()
	r.AwaitPhase(t, publish.Ready)
	frames.LateConfirms(time.Hour)
	mark := r.Mark()
	var k publishtest.Maker
	messages := k.Many(100, "", q)
	r.PublishAll(messages...)
	results := r.AwaitResults(t, messages...)
	apart, sent := min(time.Second, timeout/2), 0
	for i, result := range results {
		at := result.Message.SentAt
		if (result.Outcome == outbox.NotSent) != at.IsZero() {
			t.Errorf("message %d is %v and was sent at %v", i, result.Outcome, at)
		}
		if at.IsZero() {
			continue
		}
		if sent++; i >= sent {
			t.Errorf("message %d was sent before others", i)
		} else if i > 0 && at.Sub(messages[i-1].SentAt) < apart {
			t.Errorf("message %d was sent %v after the last one", i, at.Sub(messages[i-1].SentAt))
		}
	}
	if most := 2 + int(timeout/apart); sent < 1 || sent > most {
		t.Errorf("%d messages were sent through a half-open breaker, want at least 1 and at most %d", sent, most)
	}
	r.AwaitSince(t, mark, publish.Paused)
	frames.LateConfirms(0)
	all := append(results, r.publishUntilConfirmed(t, k.Many(100, "", q)...)...)
	r.awaitBreaker(t, publish.Paused, "open")
	r.awaitBreaker(t, publish.Ready, "half_open")
	r.awaitBreaker(t, publish.Ready, "closed")
	checkArrived(t, all, a.drain(q))
}

// awaitBreaker waits until a state reports this state of the breaker.
func (r *running) awaitBreaker(t *testing.T, phase publish.Phase, breaker string) {
	t.Helper()
	r.Await(t, "a breaker that is "+breaker, func() bool {
		return slices.ContainsFunc(r.States, func(s publish.State) bool { return s.Phase == phase && s.Breaker == breaker })
	})
}
