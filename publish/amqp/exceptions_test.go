package amqp

import (
	"bytes"
	"errors"
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

func exception(code int, text string) *amqp091.Error {
	return &amqp091.Error{Code: code, Reason: text, Server: true}
}

// Other texts are rejections, which cost one attempt.
func TestExceptionsMeanWhatTheirTextsSay(t *testing.T) {
	for _, c := range []struct {
		code    int
		text    string
		outcome outbox.Outcome
		reason  outbox.Reason
	}{
		{404, "NOT_FOUND - no exchange 'x' in vhost '/'", outbox.Rejected, outbox.ReasonNoExchange},
		{406, "PRECONDITION_FAILED - message size 20 is larger than max size 16", outbox.Impossible, outbox.ReasonTooLarge},
		{403, "ACCESS_REFUSED - write access to exchange 'x' in vhost '/' refused for user 'u'", outbox.Rejected, outbox.ReasonAccessRefused},
		{406, "PRECONDITION_FAILED - message size 20971520 is larger than configured max size 16777216", outbox.Impossible, outbox.ReasonTooLarge},
		{406, "PRECONDITION_FAILED - user_id property set to 'x' but authenticated user was 'guest'", outbox.Impossible, outbox.ReasonInvalidProperties},
		{406, "PRECONDITION_FAILED - exchange 'header priority CC message size user_id expiration delivery_mode' in vhost '/' is busy", outbox.Rejected, outbox.ReasonChannelClosed},
		{406, "PRECONDITION_FAILED - invalid expiration 'soon': no_integer", outbox.Impossible, outbox.ReasonInvalidProperties},
		{406, `PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr}`, outbox.Impossible, outbox.ReasonInvalidProperties},
		{406, "PRECONDITION_FAILED - something new", outbox.Rejected, outbox.ReasonChannelClosed},
		{506, "RESOURCE_ERROR - stream unavailable", outbox.Rejected, outbox.ReasonChannelClosed},
	} {
		v := exceptionVerdict(exception(c.code, c.text))
		if v.outcome != c.outcome || v.reason != c.reason || v.detail == "" {
			t.Errorf("%s: got %+v, want %v %q", c.text, v, c.outcome, c.reason)
		}
	}
}

func TestAForbiddenExchangeIsRecognised(t *testing.T) {
	for text, want := range map[string]bool{
		"ACCESS_REFUSED - write access to exchange 'x' in vhost '/' refused for user 'u'":              true,
		"ACCESS_REFUSED - access to exchange 'x' in vhost '/' refused for user 'u'":                    true,
		"ACCESS_REFUSED - cannot publish to internal exchange 'x' in vhost '/'":                        true,
		"ACCESS_REFUSED - write access to topic 'a' in exchange 'x' in vhost '/' refused for user 'u'": false,
		"ACCESS_REFUSED - access to topic 'access to exchange' in exchange 'x' refused for user 'u'":   false,
	} {
		if got := exceptionVerdict(exception(403, text)).wholeExchange; got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	if exceptionVerdict(exception(404, "ACCESS_REFUSED - write access to exchange ")).wholeExchange {
		t.Error("only a 403 forbids")
	}
}

func TestOnlyAnEndByTheOtherSideIsEvidence(t *testing.T) {
	network := func(reason string) *amqp091.Error { return &amqp091.Error{Code: amqp091.FrameError, Reason: reason} }
	for _, c := range []struct {
		exception   *amqp091.Error
		write       error
		stated, cut bool
	}{
		{exception: &amqp091.Error{Code: amqp091.InternalError, Server: true}, stated: true},
		{exception: &amqp091.Error{Code: amqp091.FrameError, Server: true}, stated: true},
		{exception: &amqp091.Error{Code: amqp091.ConnectionForced, Server: true}},
		{exception: network("EOF"), cut: true},
		{exception: network("read tcp 127.0.0.1:1->127.0.0.1:2: read: connection reset by peer"), cut: true},
		{write: errors.New("write tcp 127.0.0.1:1->127.0.0.1:2: write: broken pipe"), cut: true},
		{exception: network("read tcp 127.0.0.1:1->127.0.0.1:2: i/o timeout")},
		{exception: network("read tcp 127.0.0.1:1->127.0.0.1:2: use of closed network connection")},
		{write: errors.New("write tcp 127.0.0.1:1->127.0.0.1:2: i/o timeout")},
		{},
	} {
		if stated, cut := endedByBroker(c.exception), cutByPeer(c.exception, c.write); stated != c.stated || cut != c.cut {
			t.Errorf("%v, %v: %v, %v", c.exception, c.write, stated, cut)
		}
	}
}

// The names in a reason are those of rows: none of them looks like an authorization service that is down.
func TestOnlyABackendSaysThatItCouldNotAsk(t *testing.T) {
	refused := func(exchange, user, end string) *amqp091.Error {
		return exception(amqp091.AccessRefused, "ACCESS_REFUSED - write access to exchange '"+
			exchange+"' in vhost '/' refused for user '"+user+"'"+end)
	}
	const oauth = `, backend rabbit_auth_backend_oauth2 returned an error: `
	for reason, want := range map[*amqp091.Error]bool{
		refused("amq.default", "relay", oauth+`"Provided JWT token has expired at timestamp 1 (validated at 2)"`):       true,
		refused("orders", "relay", `, backend rabbit_auth_backend_http returned an error: {failed_connect,`+"\n   ..."): true,
		refused("orders", "relay", `, backend rabbit_auth_backend_cache returned an error: ldap_connect_error`):         true,
		// RabbitMQ cuts texts at 255 bytes.
		refused("orders", strings.Repeat("u", 60), oauth+`"Provided JWT token h...`):                                            true,
		refused("orders", strings.Repeat("u", 150), `, backend rab...`):                                                         true,
		refused("orders", strings.Repeat("u", 160), `...`):                                                                      true,
		exception(403, "ACCESS_REFUSED - access to exchange 'x' in vhost '/' refused for user '"+strings.Repeat("u", 99)+"..."): false,
		refused("refused for user 'u', backend x", "relay", ""):                                                                 false,
		refused("x", `a returned an error: expired"`, ""):                                                                       false,
		refused("orders", "relay", ""):                                                                                          false,
		exception(404, "refused for user 'u', backend x returned an error: "):                                                   false,
		nil: false,
	} {
		if got := couldNotAsk(reason); got != want {
			t.Errorf("%v: got %t", reason, got)
		}
		if want && (verdictOnExchange(reason).outcome != 0 || exceptionVerdict(reason).outcome != outbox.NotSent) {
			t.Errorf("%v: charged", reason)
		}
	}
}

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
