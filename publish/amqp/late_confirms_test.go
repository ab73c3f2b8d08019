package amqp

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// A broker that confirms late has everything that was sent to it. After the time-out, the first answer does not show that
// the trouble is over: what is sent at once would be sent again at once.
func TestFewMessagesLeaveAfterConfirmsWereLate(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	vhost := broker.VHost(t)
	queue := newAdmin(t, vhost).queue(services.Name(t), nil)
	frames := services.NewFrames(t, broker.Addr())
	const all = 1000
	r := startAMQP(t, Config{URL: withHost(t, vhost, frames.Addr()), SendTimeout: await.Scaled(time.Second)})
	var k publishtest.Maker
	unknown := func() (n int) {
		messages := make([]*outbox.Message, all)
		for i := range messages {
			messages[i] = k.Make("", queue, `{}`)
		}
		r.AwaitPhase(t, publish.Ready)
		mark := r.Mark()
		r.PublishAll(messages...)
		for _, result := range r.AwaitResults(t, messages...) {
			if result.Outcome == outbox.Unknown {
				n++
			}
		}
		r.AwaitSince(t, mark, publish.Ready)
		return n
	}
	frames.LateConfirms(time.Hour)
	if n := unknown(); n != all {
		t.Errorf("the first time, %d messages of %d may be copies", n, all)
	}
	var confirms atomic.Int64
	frames.Rule(func(frame []byte) time.Duration {
		if services.IsConfirm(frame) {
			if confirms.Add(1) > 1 {
				return time.Hour
			}
		}
		return 0
	})
	if n := unknown(); n > all/4 {
		t.Errorf("the second time, %d messages of %d may be copies", n, all)
	}
	frames.LateConfirms(0)
	var messages []*outbox.Message
	for range all {
		messages = append(messages, k.Make("", queue, `{}`))
	}
	r.publishUntilConfirmed(t, messages...)
}
