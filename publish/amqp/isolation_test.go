package amqp

import (
	"bytes"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// poisonOnASharedLane: a message that only the broker can reject closes the channel of its neighbours. They are all
// confirmed, and marked if they may have arrived twice. The next message of its size harms no other.
func poisonOnASharedLane(t *testing.T, broker *services.RabbitMQ) {
	u := broker.URL("")
	a := newAdmin(t, u)
	q := a.queue(services.Name(t), nil)
	r := startAMQP(t, Config{URL: u})
	var k publishtest.Maker
	round := func() (results []outbox.Result, large *outbox.Message) {
		messages := k.Many(400, "", q)
		large = messages[200]
		large.Payload, large.Binary = bytes.Repeat([]byte{1}, 1_500_000), true
		return r.Answers(t, messages...), large
	}
	check := func(results []outbox.Result, large *outbox.Message) {
		t.Helper()
		for _, result := range results {
			if result.Message == large {
				if result.Outcome != outbox.Impossible || result.Reason != outbox.ReasonTooLarge {
					t.Errorf("the large one: %+v", result)
				}
			} else if result.Outcome != outbox.Confirmed {
				t.Errorf("message %d: %v %s", result.Message.ID, result.Outcome, result.Detail)
			}
		}
	}
	results, large := round()
	check(results, large)
	checkArrived(t, results, a.drain(q))

	if most := r.Publisher.(*Publisher).MostBody(); most != 1_000_000 {
		t.Errorf("the limit of RabbitMQ is %d", most)
	}
	results, large = round()
	if check(results, large); !large.SentAt.IsZero() {
		t.Error("a message above the limit was sent again")
	}
	if n := len(a.drain(q)); n != 399 {
		t.Errorf("%d messages arrived, want 399: no neighbour may have been sent twice", n)
	}
	if r.Phase() != publish.Ready || r.Mark() != 2 {
		t.Error("the connection was lost")
	}
}

// pluginFails: an exchange type cannot evaluate the header of a message, and RabbitMQ ends the connection. Nothing else
// is published.
func pluginFails(t *testing.T, broker *services.RabbitMQ) {
	must(t, broker.EnablePlugin(t.Context(), "rabbitmq_jms_topic_exchange"))
	u := broker.URL("")
	a := newAdmin(t, u)
	x, q := services.Name(t)+"_x", a.queue(services.Name(t), nil)
	must(t, a.channel.ExchangeDeclare(x, "x-jms-topic", true, false, false, false, nil))
	selector := amqp091.Table{"rjms_erlang_selector": `{'=',{'+',{ident,<<"n">>},1},2}.`} // n + 1 = 2
	must(t, a.channel.QueueBind(q, "#", x, false, selector))
	r := startAMQP(t, Config{URL: u})
	mark := r.Mark()
	var k publishtest.Maker
	bad, good := k.Make(x, "k", "text"), k.Make(x, "k", "number")
	bad.Headers, good.Headers = []byte(`{"n": "one"}`), []byte(`{"n": 1}`)
	result := r.publishAlone(t, bad)
	if result.Reason == outbox.ReasonUnroutable {
		t.Skip("this RabbitMQ takes the text for another number")
	}
	if result.Outcome != outbox.Rejected || !strings.Contains(result.Detail, "INTERNAL_ERROR (541)") {
		t.Errorf("got %+v", result)
	}
	if n := r.CountSince(mark, publish.Ready); n > publish.EndsAlone+1 {
		t.Errorf("%d connections ended", n)
	}
	publishtest.AllAre(t, []outbox.Result{r.publishAlone(t, good)}, outbox.Confirmed)
	a.drain(q)
}

// The messages of a dead channel leave again in parts. Each culprit is alone after a few of them, however many messages
// are in flight: a round trip for each message would take minutes at a distant broker. There may be few channels.
func TestATopicPermissionRejectsOnlyItsRoutingKeys(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	u, a, x, q := withExchange(t, "topic", "#")
	limited := limitedUser(t, u, ".*")
	parsed, err := url.Parse(limited)
	must(t, err)
	vhost := strings.TrimPrefix(parsed.Path, "/")
	ctl(t, broker, "set_topic_permissions", "-p", vhost, parsed.User.Username(), x, "^open", "")
	const roundTrip = 100 * time.Millisecond
	for _, c := range []struct {
		messages, culprits, most int
		parameters               string
	}{{1000, 1, 30, ""}, {1000, 5, 110, "?channel_max=9"}, {40, 40, 100, "?channel_max=5"}} {
		sent := newMethods(t)
		distant := services.NewProxy(t, sent.Addr())
		distant.Delay(roundTrip / 2)
		r := startAMQP(t, Config{URL: withHost(t, limited, distant.Addr()) + c.parameters})
		k := publishtest.Maker{ID: int64(c.culprits) * 10_000}
		messages := k.Many(c.messages, x, "open.a")
		shut := func(i int) bool { return i%(c.messages/c.culprits) == 111%(c.messages/c.culprits) }
		for i, m := range messages {
			if shut(i) {
				m.RoutingKey = "shut.b"
			}
		}
		began := time.Now()
		results := r.Answers(t, messages...)
		if took := time.Since(began); took > 250*roundTrip {
			t.Errorf("took %v with %d culprits", took, c.culprits)
		}
		for i, result := range results {
			if shut(i) {
				checkRejected(t, result, outbox.ReasonAccessRefused)
			} else if result.Outcome != outbox.Confirmed {
				t.Errorf("message %d: %v %s", i, result.Outcome, result.Detail)
			}
		}
		checkArrived(t, results, a.drain(q))
		if n := sent.count(channelOpen); n > c.most {
			t.Errorf("%d channels were opened to find %d culprits", n, c.culprits)
		}
	}
}

// An exchange that nothing was published to for longest gives its channel up.
func TestMoreExchangesThanChannels(t *testing.T) {
	t.Parallel()
	u, a, q := withQueue(t)
	r := startAMQP(t, Config{URL: u + "?channel_max=9"})
	var k publishtest.Maker
	for n := range 12 {
		exchange := fmt.Sprintf("%s_%d", q, n)
		a.exchange(exchange, "fanout", q, "")
		publishtest.AllAre(t, r.Answers(t, k.Many(1, exchange, "k")...), outbox.Confirmed)
	}
}

// A message that is sent alone after it is not charged, also if there are few channels.
func TestALateExceptionIsChargedToItsOwnMessage(t *testing.T) {
	t.Parallel()
	for _, parameters := range []string{"", "?channel_max=9"} {
		_, q, proxy, u := behindProxy(t)
		r := startAMQP(t, Config{URL: u + parameters})
		var k publishtest.Maker
		messages := k.Many(3, "", q)
		messages[0].Properties = []byte(`{"user_id": "somebody"}`)
		messages[1].Properties = []byte(`{"user_id": "somebody-else"}`)
		proxy.BlackHole(services.Downstream)
		late := time.AfterFunc(2*time.Second, func() { proxy.Resume() })
		defer late.Stop()
		results := r.Answers(t, messages...)
		for i, user := range []string{"'somebody'", "'somebody-else'"} {
			if results[i].Outcome != outbox.Impossible || !strings.Contains(results[i].Detail, user) {
				t.Errorf("the message of %s: %+v", user, results[i])
			}
		}
		publishtest.AllAre(t, results[2:], outbox.Confirmed)
	}
}

func channelsWithUnconfirmed(t *testing.T, vhostURL string) int {
	t.Helper()
	u, err := url.Parse(vhostURL)
	must(t, err)
	out := ctl(t, services.SharedRabbitMQ(t), "list_channels", "--quiet", "--no-table-headers", "vhost", "messages_unconfirmed")
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
	publishtest.AllAre(t, r.Answers(t, unanswered), outbox.Unknown)
	publishtest.AllAre(t, f.end(t), outbox.Confirmed)
	for range 3 {
		messages := k.Many(1000, "", q)
		publishtest.AllAre(t, r.Answers(t, messages...), outbox.Confirmed)
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
