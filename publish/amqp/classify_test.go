package amqp

import (
	"errors"
	"strings"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
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
