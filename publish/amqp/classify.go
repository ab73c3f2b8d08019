package amqp

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// evidence is what is known of a sent message when its confirm is resolved or given up.
type evidence struct {
	// unsent: the library did not send because the channel was already closed.
	unsent bool
	// acked is the confirm. It is also false if the library resolved the confirm because of a close.
	acked bool
	// timedOut: no confirm came in time.
	timedOut bool
	// returned is the broker's basic.return for this message, or nil.
	returned *amqp091.Return
	// channelClosed and connectionClosed: closed when the confirm was resolved.
	channelClosed, connectionClosed bool
	// exception is why the channel was closed; nil: the broker gave no reason.
	exception *amqp091.Error
	// alone: no later message was sent on this channel, and every unanswered earlier message had ample time for its
	// answer. The exception belongs to this message, unless it names another size.
	alone bool
	// shared: the channel carries many messages; after an exception they are sent again one at a time.
	shared bool
	// recovering: the broker may still have to recover from an outage; see session.recovering.
	recovering bool
}

// verdict is the meaning of the evidence.
type verdict struct {
	outcome outbox.Outcome
	reason  outbox.Reason
	detail  string
	// replay: one message of the channel caused its close, and it is unknown which. The message is to be sent again
	// alone; outcome applies if that is impossible.
	replay bool
	// nacked: the broker answered with a nack.
	nacked bool
	// wholeExchange: every message to the exchange would fail alike.
	wholeExchange bool
}

// result is the result of a message; maybeSent: it was sent before.
func (v verdict) result(m *outbox.Message, maybeSent bool) outbox.Result {
	return outbox.Result{Message: m, Outcome: v.outcome, Reason: v.reason, Detail: v.detail, MaybeSent: maybeSent}
}

// lostBeforeSent is the verdict on a message of a connection that was lost before.
func lostBeforeSent() verdict {
	return verdict{outcome: outbox.NotSent, detail: "the connection was lost before the message was sent"}
}

// classify tells rejections, which cost an attempt, from outages, which cost none. No other code does.
func classify(e evidence) verdict {
	closed, replay := "", false
	switch {
	case e.connectionClosed:
		closed = "the connection was lost before "
	case e.channelClosed:
		closed, replay = "the channel was closed before ", e.shared
	}
	switch {
	case e.acked && e.returned != nil && !saysNothing(e.returned):
		return verdict{outcome: outbox.Rejected, reason: outbox.ReasonUnroutable, detail: returnText(e.returned)}
	case e.acked:
		return verdict{outcome: outbox.Confirmed}
	case e.timedOut:
		return verdict{outcome: outbox.Unknown, detail: "RabbitMQ did not confirm in time"}
	case closed != "" && e.unsent:
		return verdict{outcome: outbox.NotSent, replay: replay, detail: closed + "the message was sent"}
	case closed != "" && loginExpired(e.exception):
		return verdict{outcome: outbox.Unknown, detail: "the login has expired" + because(e.exception)}
	case closed != "" && e.alone && !e.shared && !e.connectionClosed && e.exception != nil:
		return exceptionVerdict(e.exception)
	case closed != "":
		return verdict{outcome: outbox.Unknown, replay: replay, detail: closed + "the confirm" + because(e.exception)}
	case e.recovering:
		return verdict{
			outcome: outbox.Unknown, nacked: true, detail: "RabbitMQ answered with a nack right after an outage",
		}
	}
	return verdict{
		outcome: outbox.Rejected, reason: outbox.ReasonNack, nacked: true,
		detail: "RabbitMQ answered with a nack: a queue rejected the message, or RabbitMQ could not handle it",
	}
}

// exceptionVerdict judges a message that was alone when the broker closed the channel.
func exceptionVerdict(e *amqp091.Error) verdict {
	v := verdict{outcome: outbox.Rejected, reason: outbox.ReasonChannelClosed, detail: amqpdial.ExceptionText(e)}
	switch {
	case e.Code == amqp091.NotFound:
		v.reason = outbox.ReasonNoExchange
	case e.Code == amqp091.AccessRefused:
		v.reason, v.wholeExchange = outbox.ReasonAccessRefused, exchangeForbidden(e)
	case isSizeException(e):
		v.outcome, v.reason = outbox.Impossible, outbox.ReasonTooLarge
	case isPropertyException(e):
		v.outcome, v.reason = outbox.Impossible, outbox.ReasonInvalidProperties
	}
	return v
}

// isSizeException reports whether the text is one of bodySizes.
func isSizeException(e *amqp091.Error) bool {
	return e.Code == amqp091.PreconditionFailed && begins(e, "message size ")
}

// begins compares only the start of the broker's text; the rest may contain names chosen by people.
func begins(e *amqp091.Error, text string) bool {
	return strings.HasPrefix(strings.TrimPrefix(e.Reason, "PRECONDITION_FAILED - "), text)
}

// namesAnotherSize reports whether the exception is about a body of another size.
func namesAnotherSize(e *amqp091.Error, size int) bool {
	if e == nil || !isSizeException(e) {
		return false
	}
	named, _ := bodySizes(e.Reason)
	return named != 0 && named != size
}

// isPropertyException matches the texts of RabbitMQ 3 and 4; "invalid message" is about CC, BCC or the delivery mode.
// Any other text is a rejection, which costs one attempt.
func isPropertyException(e *amqp091.Error) bool {
	return e.Code == amqp091.PreconditionFailed &&
		(begins(e, "user_id property ") || begins(e, "invalid expiration ") || begins(e, "invalid message: "))
}

// exchangeForbidden reports whether every message to the exchange would fail: no write permission, or an internal
// exchange. A topic permission ("write access to topic …") is about one routing key.
func exchangeForbidden(e *amqp091.Error) bool {
	return e != nil && e.Code == amqp091.AccessRefused && !loginExpired(e) &&
		(strings.Contains(e.Reason, "access to exchange") || strings.Contains(e.Reason, "internal exchange"))
}

// expiredToken is what RabbitMQ writes after the names when an OAuth 2 token has expired.
const expiredToken = `', backend rabbit_auth_backend_oauth2 returned an error: "Provided JWT token has expired`

// loginExpired reports that the login of the connection is no longer valid. RabbitMQ then refuses every message, but
// keeps the connection. The words of the authentication backend follow the name of the user; names of rows stand before
// it. RabbitMQ cuts texts at 255 bytes, and names fill most of them.
func loginExpired(e *amqp091.Error) bool {
	if e == nil || e.Code != amqp091.AccessRefused {
		return false
	}
	user := strings.LastIndex(e.Reason, "refused for user '")
	end := strings.LastIndex(e.Reason, "', backend ")
	if user < 0 || end < user {
		return false
	}
	words := e.Reason[end:]
	if part, cut := strings.CutSuffix(words, "..."); cut && strings.HasPrefix(expiredToken, part) {
		return true
	}
	_, says, found := strings.Cut(words, " returned an error: ")
	return found && strings.Contains(says, "expired")
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
func fatal(times int, e evidence) verdict {
	why := "without a reason"
	if e.exception != nil {
		why = amqpdial.ExceptionText(e.exception)
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
	return fmt.Sprintf("%s (%d): no queue took the message with routing key %q from exchange %q",
		r.ReplyText, r.ReplyCode, r.RoutingKey, r.Exchange)
}

func because(e *amqp091.Error) string {
	if e == nil {
		return ""
	}
	return ": " + amqpdial.ExceptionText(e)
}
