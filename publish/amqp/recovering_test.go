package amqp

import (
	"slices"
	"sync/atomic"
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

func (r *running) reconnect(t *testing.T, proxy *services.Proxy) {
	t.Helper()
	mark := r.Mark()
	proxy.Cut()
	r.AwaitSince(t, mark, publish.Connecting)
	r.AwaitSince(t, mark, publish.Ready)
}

func (r *running) outcome(t *testing.T, m *outbox.Message) outbox.Outcome {
	t.Helper()
	return r.Answers(t, m)[0].Outcome
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

// A broker that confirms late has everything that was sent to it. After the time-out, the first answer does not show that
// the trouble is over: what is sent at once would be sent again at once.
func TestFewMessagesLeaveAfterConfirmsWereLate(t *testing.T) {
	t.Parallel()
	u, _, queue := withQueue(t)
	frames, u := behindFrames(t, u)
	const all = 1000
	r := startAMQP(t, Config{URL: u, SendTimeout: await.Scaled(time.Second)})
	var k publishtest.Maker
	unknown := func() (n int) {
		r.AwaitPhase(t, publish.Ready)
		mark := r.Mark()
		n = publishtest.Count(r.Answers(t, k.Many(all, "", queue)...), outbox.Unknown)
		r.AwaitSince(t, mark, publish.Ready)
		return n
	}
	frames.LateConfirms(time.Hour)
	if n := unknown(); n != all {
		t.Errorf("the first time, %d messages of %d may be copies", n, all)
	}
	var confirms atomic.Int64
	frames.Rule(func(frame []byte) time.Duration {
		if services.IsConfirm(frame) && confirms.Add(1) > 1 {
			return time.Hour
		}
		return 0
	})
	if n := unknown(); n > all/4 {
		t.Errorf("the second time, %d messages of %d may be copies", n, all)
	}
	frames.LateConfirms(0)
	r.publishUntilConfirmed(t, k.Many(all, "", queue)...)
}

// After an outage, one message goes first. While it has no answer, the next one follows only after half of the send
// timeout, a second at most. After an answer, the others follow.
func TestAHalfOpenBreakerSendsOneMessageAtATime(t *testing.T) {
	u, a, q := withQueue(t)
	frames, u := behindFrames(t, u) // all but confirms pass it, so that the channel opens
	proxy := services.NewProxy(t, frames.Addr())
	timeout := await.Scaled(time.Second)
	r := startAMQP(t, Config{URL: withHost(t, u, proxy.Addr()), SendTimeout: timeout})
	proxy.Refuse()
	proxy.Cut()
	r.AwaitPhase(t, publish.Paused)
	proxy.Accept()
	r.AwaitPhase(t, publish.Ready)
	frames.LateConfirms(time.Hour)
	mark := r.Mark()
	var k publishtest.Maker
	messages := k.Many(100, "", q)
	results := r.Answers(t, messages...)
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

func (r *running) awaitBreaker(t *testing.T, phase publish.Phase, breaker string) {
	t.Helper()
	r.Await(t, "a breaker that is "+breaker, func() bool {
		return slices.ContainsFunc(r.States, func(s publish.State) bool { return s.Phase == phase && s.Breaker == breaker })
	})
}
