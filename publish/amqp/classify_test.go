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

func TestClassify(t *testing.T) {
	returned := &amqp091.Return{ReplyCode: 312, ReplyText: "NO_ROUTE", Exchange: "x", RoutingKey: "k"}
	notFound := exception(404, "NOT_FOUND - no exchange 'x' in vhost '/'")
	forced := exception(320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'")
	for name, c := range map[string]struct {
		evidence evidence
		outcome  outbox.Outcome
		reason   outbox.Reason
		replay   bool
	}{
		"confirmed":                    {evidence{acked: true}, outbox.Confirmed, "", false},
		"confirmed, lost after":        {evidence{acked: true, channelClosed: true, connectionClosed: true}, outbox.Confirmed, "", false},
		"returned and confirmed":       {evidence{acked: true, returned: returned}, outbox.Rejected, outbox.ReasonUnroutable, false},
		"nack":                         {evidence{}, outbox.Rejected, outbox.ReasonNack, false},
		"nack right after an outage":   {evidence{recovering: true}, outbox.Unknown, "", false},
		"returned, confirm lost":       {evidence{returned: returned, connectionClosed: true, channelClosed: true}, outbox.Unknown, "", false},
		"connection lost":              {evidence{connectionClosed: true, channelClosed: true, exception: forced}, outbox.Unknown, "", false},
		"connection lost, alone":       {evidence{connectionClosed: true, channelClosed: true, alone: true, exception: forced}, outbox.Unknown, "", false},
		"connection lost, never sent":  {evidence{unsent: true, connectionClosed: true, channelClosed: true}, outbox.NotSent, "", false},
		"timeout":                      {evidence{timedOut: true}, outbox.Unknown, "", false},
		"lane died":                    {evidence{channelClosed: true, exception: notFound}, outbox.Unknown, "", true},
		"lane died before":             {evidence{unsent: true, channelClosed: true}, outbox.NotSent, "", true},
		"lane died before, alone":      {evidence{unsent: true, channelClosed: true, alone: true, exception: notFound}, outbox.NotSent, "", true},
		"alone, 404":                   {evidence{channelClosed: true, alone: true, exception: notFound}, outbox.Rejected, outbox.ReasonNoExchange, false},
		"alone, closed without a word": {evidence{channelClosed: true, alone: true}, outbox.Unknown, "", true},
		"alone, 403": {
			evidence{channelClosed: true, alone: true, exception: exception(403, "ACCESS_REFUSED - write access to exchange 'x' in vhost '/' refused for user 'u'")},
			outbox.Rejected, outbox.ReasonAccessRefused, false,
		},
		"alone, too large": {
			evidence{channelClosed: true, alone: true, exception: exception(406, "PRECONDITION_FAILED - message size 20971520 is larger than configured max size 16777216")},
			outbox.Impossible, outbox.ReasonTooLarge, false,
		},
		"alone, user_id": {
			evidence{channelClosed: true, alone: true, exception: exception(406, "PRECONDITION_FAILED - user_id property set to 'x' but authenticated user was 'guest'")},
			outbox.Impossible, outbox.ReasonInvalidProperties, false,
		},
		"alone, an exchange with such a name": {
			evidence{channelClosed: true, alone: true, exception: exception(406, "PRECONDITION_FAILED - exchange 'header priority CC message size user_id expiration delivery_mode' in vhost '/' is busy")},
			outbox.Rejected, outbox.ReasonChannelClosed, false,
		},
		"alone, expiration": {
			evidence{channelClosed: true, alone: true, exception: exception(406, "PRECONDITION_FAILED - invalid expiration 'soon': no_integer")},
			outbox.Impossible, outbox.ReasonInvalidProperties, false,
		},
		"alone, CC": {
			evidence{channelClosed: true, alone: true, exception: exception(406, `PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr}`)},
			outbox.Impossible, outbox.ReasonInvalidProperties, false,
		},
		"alone, another 406": {
			evidence{channelClosed: true, alone: true, exception: exception(406, "PRECONDITION_FAILED - something new")},
			outbox.Rejected, outbox.ReasonChannelClosed, false,
		},
		"alone, 506": {
			evidence{channelClosed: true, alone: true, exception: exception(506, "RESOURCE_ERROR - stream unavailable")},
			outbox.Rejected, outbox.ReasonChannelClosed, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := classify(c.evidence)
			if v.outcome != c.outcome || v.reason != c.reason || v.replay != c.replay {
				t.Errorf("got %v %q replay %v, want %v %q %v", v.outcome, v.reason, v.replay, c.outcome, c.reason, c.replay)
			}
			if (v.detail == "") != (v.outcome == outbox.Confirmed) || strings.Contains(v.detail, "\n") {
				t.Errorf("detail %q", v.detail)
			}
		})
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
		if got := exchangeForbidden(exception(403, text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	if exchangeForbidden(exception(404, "write access to exchange")) || exchangeForbidden(nil) {
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
