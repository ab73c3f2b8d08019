package amqp

import (
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// RabbitMQ delivers a direct reply, and returns it nevertheless: the key is no queue. Its sender cannot know whether
// the requester is still there.
func TestADirectReplyIsDeliveredOnce(t *testing.T) {
	t.Parallel()
	url := services.VHost(t)
	a := newAdmin(t, url)
	requests := a.queue("requests", nil)
	requester := services.DialAMQP(t, url)
	channel, err := requester.Channel()
	must(t, err)
	replies, err := channel.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
	must(t, err)
	request := amqp091.Publishing{ReplyTo: "amq.rabbitmq.reply-to"}
	must(t, channel.Publish("", requests, true, false, request))
	got, err := a.channel.Consume(requests, "", true, false, false, false, nil)
	must(t, err)
	to := (<-got).ReplyTo
	r := startAMQP(t, Config{URL: url})
	var k publishtest.Maker
	one, two := k.Make("", to, `1`), k.Make("", to, `2`)
	for _, m := range []*outbox.Message{one, two} {
		if outcome := r.outcome(t, m); outcome != outbox.Confirmed {
			t.Errorf("a direct reply: %s, want confirmed", outcome)
		}
		if d := <-replies; d.MessageId != m.MessageID.String() {
			t.Errorf("message %s arrived, want %s", d.MessageId, m.MessageID)
		}
	}
	for _, other := range [][2]string{
		{"", "amq.rabbitmq.reply-to"}, {"", "amq.rabbitmq.reply-to-me"}, {"", "my." + to}, {"amq.direct", to},
	} {
		if outcome := r.outcome(t, k.Make(other[0], other[1], `3`)); outcome != outbox.Rejected {
			t.Errorf("%s: %s, want a rejection", other, outcome)
		}
	}
	must(t, requester.Close())
	if outcome := r.outcome(t, k.Make("", to, `4`)); outcome != outbox.Confirmed {
		t.Errorf("without the requester: %s", outcome)
	}
	r.CheckOnce(t)
}

// An exchange of type x-delayed-message keeps a message with this header, and returns it at once. Nobody can tell its type.
func TestAReturnOfADelayedMessageSaysNothing(t *testing.T) {
	t.Parallel()
	r := startAMQP(t, Config{URL: services.VHost(t)})
	var k publishtest.Maker
	for headers, want := range map[string]outbox.Outcome{
		`{"x-delay": 5000}`: outbox.Confirmed, `{"x-delay": "5000"}`: outbox.Confirmed, `{"x-delay": 1.5}`: outbox.Confirmed,
		`{"x-delay": 0}`: outbox.Rejected, `{"x-delay": -1}`: outbox.Rejected, `{"x-delay": "soon"}`: outbox.Rejected,
		`{"x-delay": {"a": 1}}`: outbox.Rejected, `{"x-delays": 5}`: outbox.Rejected,
	} {
		m := k.Make("amq.topic", "no.queue", `1`)
		m.Headers = []byte(headers)
		if outcome := r.outcome(t, m); outcome != want {
			t.Errorf("%s: %s, want %s", headers, outcome, want)
		}
		m = k.Make("", "no.queue", `1`)
		m.Headers = []byte(headers)
		if outcome := r.outcome(t, m); outcome != outbox.Rejected {
			t.Errorf("%s to the default exchange: %s, want a rejection", headers, outcome)
		}
	}
}
