package amqp

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// verdict is what an event means for a message.
type verdict struct {
	outcome outbox.Outcome
	reason  outbox.Reason
	detail  string
	// wholeExchange: every message to the exchange would fail alike.
	wholeExchange bool
	// retryIn: RabbitMQ works, and only this message must wait.
	retryIn time.Duration
}

// result is the result of a message; maybeSent: it was sent before.
func (v verdict) result(m *outbox.Message, maybeSent bool) outbox.Result {
	return outbox.Result{
		Message: m, Outcome: v.outcome, Reason: v.reason, Detail: v.detail, MaybeSent: maybeSent, RetryIn: v.retryIn,
	}
}

// lostBeforeSent is the verdict on a message of a connection that was lost before.
func lostBeforeSent() verdict {
	return verdict{outcome: outbox.NotSent, detail: "the connection was lost before the message was sent"}
}

// unasked is the wait of a message for which nobody could check the permissions, while the broker works otherwise.
const unasked = 10 * time.Second

// verdictOnExchange judges all messages of the exchange to which a channel belonged. No outcome: the exception is about
// one of them, or nobody knows.
func verdictOnExchange(e *amqp091.Error) verdict {
	if e == nil || couldNotAsk(e) {
		return verdict{}
	}
	if v := exceptionVerdict(e); v.wholeExchange || v.reason == outbox.ReasonNoExchange {
		return v
	}
	return verdict{}
}

// exceptions are what RabbitMQ's texts mean, by how they begin: the rest may contain names chosen by people. Texts that
// are not here are rejections, which cost one attempt. All were seen from RabbitMQ 3.10 to 4.3 unless noted.
var exceptions = []struct {
	code   int
	begins string
	verdict
}{
	{amqp091.NotFound, "", verdict{outcome: outbox.Rejected, reason: outbox.ReasonNoExchange}},
	{amqp091.AccessRefused, "ACCESS_REFUSED - write access to exchange ", forbidden},
	{amqp091.AccessRefused, "ACCESS_REFUSED - access to exchange ", forbidden}, // before 3.12
	{amqp091.AccessRefused, "ACCESS_REFUSED - cannot publish to internal exchange ", forbidden},
	// A topic permission ("write access to topic …", before 3.12 "access to topic …") is about one routing key.
	{amqp091.AccessRefused, "", verdict{outcome: outbox.Rejected, reason: outbox.ReasonAccessRefused}},
	// "message size 20 is larger than max size 16"; since 3.12 "… than configured max size 16".
	{amqp091.PreconditionFailed, tooLarge, verdict{outcome: outbox.Impossible, reason: outbox.ReasonTooLarge}},
	{amqp091.PreconditionFailed, "PRECONDITION_FAILED - user_id property ", unfitProperties},
	{amqp091.PreconditionFailed, "PRECONDITION_FAILED - invalid expiration ", unfitProperties},
	{amqp091.PreconditionFailed, "PRECONDITION_FAILED - invalid message: ", unfitProperties}, // CC, BCC, delivery mode
	{0, "", verdict{outcome: outbox.Rejected, reason: outbox.ReasonChannelClosed}},
}

const tooLarge = "PRECONDITION_FAILED - message size "

var (
	forbidden = verdict{
		outcome: outbox.Rejected, reason: outbox.ReasonAccessRefused, wholeExchange: true,
	}
	unfitProperties = verdict{outcome: outbox.Impossible, reason: outbox.ReasonInvalidProperties}
)

// exceptionVerdict judges a message that was the only unanswered one when the broker closed the channel.
func exceptionVerdict(e *amqp091.Error) (v verdict) {
	for _, known := range exceptions {
		if (known.code == 0 || known.code == e.Code) && strings.HasPrefix(e.Reason, known.begins) {
			v = known.verdict
			break
		}
	}
	if couldNotAsk(e) {
		v.outcome, v.retryIn = outbox.NotSent, unasked
	}
	v.detail = amqpdial.ExceptionText(e)
	return v
}

// couldNotAsk reports a refusal by an authorization service that could not answer: "access to … refused for user 'u',
// backend rabbit_auth_backend_http returned an error: {failed_connect,…". It is the same in RabbitMQ 3 and 4, for all
// backends. One of them says that a token has expired. The words follow the name of the user; names of rows stand
// before it. RabbitMQ cuts texts at 255 bytes, and names fill most of them: the beginning of the words is enough.
func couldNotAsk(e *amqp091.Error) bool {
	if e == nil || e.Code != amqp091.AccessRefused {
		return false
	}
	const refused, backend = "refused for user '", "', backend "
	user := strings.LastIndex(e.Reason, refused)
	if user < 0 {
		return false
	}
	words := e.Reason[user+len(refused):]
	part, cut := strings.CutSuffix(words, "...")
	end := strings.LastIndex(part, "'")
	return strings.Contains(words, backend) || cut && end >= 0 && strings.HasPrefix(backend, part[end:])
}

// endedByBroker reports whether an exception may be about a message. An operator's close and a broker shutdown are not.
func endedByBroker(e *amqp091.Error) bool {
	return e != nil && e.Server && e.Code != amqp091.ConnectionForced
}

// cutByPeer reports whether the other side ended the connection without a reason, as a proxy or a crash does. A timeout
// is an outage.
func cutByPeer(e *amqp091.Error, write error) bool {
	text := ""
	switch {
	case e != nil && amqpdial.FromNetwork(e):
		text = e.Reason
	case e == nil && write != nil: // the library reports why it closed the connection only later
		text = write.Error()
	}
	return text == "EOF" || slices.ContainsFunc([]string{
		"unexpected EOF", "connection reset", "broken pipe", "forcibly closed", "connection was aborted",
	}, func(part string) bool { return strings.Contains(text, part) })
}

// fatal is the verdict on a message that ended connection after connection. It says what ended the last one.
func fatal(times int, reason *amqp091.Error) verdict {
	why := "without a reason"
	if reason != nil {
		why = amqpdial.ExceptionText(reason)
	}
	return verdict{
		outcome: outbox.Rejected, reason: outbox.ReasonChannelClosed,
		detail: fmt.Sprintf("RabbitMQ ended the connection %d times when this message was sent alone: %s", times, why),
	}
}

// directReply begins the routing key of a direct reply.
const directReply = "amq.rabbitmq.reply-to"

// saysNothing reports whether RabbitMQ returns a message that it may have accepted, because no queue takes it at once:
// a direct reply goes to the requester's channel, and a delayed one waits in an exchange of x-delayed-message. AMQP
// does not tell the type of an exchange, but only such exchanges know the header.
func saysNothing(r *amqp091.Return) bool {
	if r.Exchange == "" {
		return strings.HasPrefix(r.RoutingKey, directReply+".")
	}
	delay, err := strconv.ParseFloat(fmt.Sprint(r.Headers["x-delay"]), 64)
	return err == nil && delay >= 1
}

func returnText(r *amqp091.Return) string {
	return fmt.Sprintf("%s (%d): no queue took the message %s", r.ReplyText, r.ReplyCode,
		routeText(r.RoutingKey, r.Exchange))
}

// routeText ends a text. Commands read the exchange of a row without one from it.
func routeText(routingKey, exchange string) string {
	return fmt.Sprintf("with routing key %q from exchange %q", routingKey, exchange)
}

func because(e *amqp091.Error) string {
	if e == nil {
		return ""
	}
	return ": " + amqpdial.ExceptionText(e)
}
