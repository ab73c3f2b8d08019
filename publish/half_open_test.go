package publish

import (
	"slices"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// One message goes first, another after half of the send timeout, and the others only after an answer.
func TestAHalfOpenBreakerSendsOneMessageAtATime(t *testing.T) {
	_, q, proxy, u := behindProxy(t)
	timeout := await.Scaled(time.Second)
	r := startAMQP(t, AMQPConfig{URL: u, SendTimeout: timeout})
	proxy.Refuse()
	proxy.Cut()
	r.awaitPhase(t, Paused)
	proxy.Accept()
	r.awaitPhase(t, Ready)
	proxy.BlackHole(services.Downstream)
	mark := r.mark()
	var k maker
	messages := k.many(100, "", q)
	r.publish(messages...)
	results := r.awaitResults(t, messages...)
	if count(results, outbox.NotSent) < 98 {
		t.Errorf("%d messages were sent through a half-open breaker", 100-count(results, outbox.NotSent))
	}
	r.awaitSince(t, mark, Paused)
	proxy.Resume()
	r.publishUntilConfirmed(t, k.many(100, "", q)...)
	r.awaitBreaker(t, Paused, "open")
	r.awaitBreaker(t, Ready, "half_open")
	r.awaitBreaker(t, Ready, "closed")
}

// awaitBreaker waits until a state reports this state of the breaker.
func (r *recorder) awaitBreaker(t *testing.T, phase Phase, breaker string) {
	t.Helper()
	r.await(t, "a breaker that is "+breaker, func() bool {
		return slices.ContainsFunc(r.states, func(s State) bool { return s.Phase == phase && s.Breaker == breaker })
	})
}
