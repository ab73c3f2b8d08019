package amqp

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// channelsWithUnconfirmed counts the channels of a virtual host with unconfirmed messages.
func channelsWithUnconfirmed(t *testing.T, vhostURL string) int {
	t.Helper()
	u, err := url.Parse(vhostURL)
	must(t, err)
	out, err := services.SharedRabbitMQ(t).Ctl(t.Context(), "list_channels", "--quiet", "--no-table-headers", "vhost", "messages_unconfirmed")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n := 0
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == strings.TrimPrefix(u.Path, "/") && f[1] != "0" {
			n++
		}
	}
	return n
}

// Without a new channel, the library would remember every later confirm. Other messages of the exchange are unaffected.
func TestAChannelIsReplacedAfterAMissingConfirm(t *testing.T) {
	t.Parallel()
	u, q, stuck := withStuckQueue(t)
	r := startAMQP(t, Config{URL: u, SendTimeout: await.Scaled(2 * time.Second)})
	mark := r.Mark()
	k := &publishtest.Maker{}
	f := startFlow(r, k, "", q, 100)
	awaitConfirms(t, r, 100)
	unanswered := (&publishtest.Maker{ID: 1 << 30}).Make("", stuck, `{}`)
	r.PublishAll(unanswered)
	publishtest.AllAre(t, r.AwaitResults(t, unanswered), outbox.Unknown)
	publishtest.AllAre(t, f.end(t), outbox.Confirmed)
	for range 3 {
		messages := k.Many(1000, "", q)
		r.PublishAll(messages...)
		publishtest.AllAre(t, r.AwaitResults(t, messages...), outbox.Confirmed)
	}
	for deadline := time.Now().Add(await.Hang()); channelsWithUnconfirmed(t, u) > 0; {
		if time.Now().After(deadline) {
			t.Fatal("the channel is still open")
		}
	}
	if r.Mark() != mark {
		t.Error("the connection was lost")
	}
}
