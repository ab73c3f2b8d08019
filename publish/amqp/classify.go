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
	// alone: no other message was unanswered on this channel, so the exception belongs to this one. Otherwise all of
	// them are sent again.
	alone bool
	// recovering: the broker may still have to recover from an outage; see session.recovering.
	recovering bool
}

// verdict is the meaning of the evidence.
type verdict struct {
	outcome outbox.Outcome
	reason  outbox.Reason
	detail  string
	// replay: one message of the channel caused its close, and it is unknown which. The message is to be sent again;
	// outcome applies if that is impossible.
	replay bool
	// nacked: the broker answered with a nack.
	nacked bool
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

// classify tells rejections, which cost an attempt, from outages, which cost none. No other code does.
func classify(e evidence) verdict {
	closed, replay := "", false
	switch {
	case e.connectionClosed:
		closed = "the connection was lost before "
	case e.channelClosed:
		closed, replay = "the channel was closed before ", true
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
	case closed != "" && e.alone && !e.connectionClosed && e.exception != nil:
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

// unasked is the wait of a message for which nobody could check the permissions, while the broker works otherwise.
const unasked = 10 * time.Second

// verdictOnExchange judges all messages of the exchange to which a channel belonged. No outcome: the exception is about
// one of them, or nobody knows.
func verdictOnExchange(e *amqp091.Error) verdict {
	if e == nil || couldNotAsk(e) || e.Code != amqp091.NotFound && !exchangeForbidden(e) {
		return verdict{}
	}
	return exceptionVerdict(e)
}

// exceptionVerdict judges a message that was the only unanswered one when the broker closed the channel.
func exceptionVerdict(e *amqp091.Error) verdict {
	v := verdict{outcome: outbox.Rejected, reason: outbox.ReasonChannelClosed, detail: amqpdial.ExceptionText(e)}
	switch {
	case e.Code == amqp091.NotFound:
		v.reason = outbox.ReasonNoExchange
	case couldNotAsk(e):
		v.outcome, v.reason, v.retryIn = outbox.NotSent, outbox.ReasonAccessRefused, unasked
		v.wholeExchange = aboutExchange(e)
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

// isPropertyException matches the texts of RabbitMQ 3 and 4; "invalid message" is about CC, BCC or the delivery mode.
// Any other text is a rejection, which costs one attempt.
func isPropertyException(e *amqp091.Error) bool {
	return e.Code == amqp091.PreconditionFailed &&
		(begins(e, "user_id property ") || begins(e, "invalid expiration ") || begins(e, "invalid message: "))
}

// exchangeForbidden reports whether every message to the exchange would fail: no write permission, or an internal
// exchange. A topic permission ("write access to topic …") is about one routing key.
func exchangeForbidden(e *amqp091.Error) bool {
	return e != nil && e.Code == amqp091.AccessRefused && !couldNotAsk(e) && aboutExchange(e)
}

// aboutExchange reports whether a refusal is about the exchange. Names of rows stand after these words. RabbitMQ before
// 3.12 writes no permission before "access".
func aboutExchange(e *amqp091.Error) bool {
	text := strings.TrimPrefix(e.Reason, "ACCESS_REFUSED - ")
	return strings.HasPrefix(strings.TrimPrefix(text, "write "), "access to exchange ") ||
		strings.HasPrefix(text, "cannot publish to internal exchange ")
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
