package amqp

import (
	"errors"
	"strings"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
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
