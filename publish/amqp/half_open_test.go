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

// One message goes first, another after half of the send timeout, and the others only after an answer.
func TestAHalfOpenBreakerSendsOneMessageAtATime(t *testing.T) {
	_, q, proxy, u := behindProxy(t)
	timeout := await.Scaled(time.Second)
	r := startAMQP(t, Config{URL: u, SendTimeout: timeout})
	proxy.Refuse()
	proxy.Cut()
	r.AwaitPhase(t, publish.Paused)
	proxy.Accept()
	r.AwaitPhase(t, publish.Ready)
	proxy.BlackHole(services.Downstream)
	mark := r.Mark()
	var k publishtest.Maker
	messages := k.Many(100, "", q)
	r.PublishAll(messages...)
	results := r.AwaitResults(t, messages...)
	if publishtest.Count(results, outbox.NotSent) < 98 {
		t.Errorf("%d messages were sent through a half-open breaker", 100-publishtest.Count(results, outbox.NotSent))
	}
	r.AwaitSince(t, mark, publish.Paused)
	proxy.Resume()
	r.publishUntilConfirmed(t, k.Many(100, "", q)...)
	r.awaitBreaker(t, publish.Paused, "open")
	r.awaitBreaker(t, publish.Ready, "half_open")
	r.awaitBreaker(t, publish.Ready, "closed")
}

// awaitBreaker waits until a state reports this state of the breaker.
func (r *running) awaitBreaker(t *testing.T, phase publish.Phase, breaker string) {
	t.Helper()
	r.Await(t, "a breaker that is "+breaker, func() bool {
		return slices.ContainsFunc(r.States, func(s publish.State) bool { return s.Phase == phase && s.Breaker == breaker })
	})
}
