package problem

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// OfReason explains a code of docs/delivery.md, and says what to do first; "": it is a code of an embedding program. A
// nil exchange is the one that the relay chose: detail, the text of the rejection, names it. Detail begins with the
// code of the last rejection, which explains exhausted retries.
func OfReason(r outbox.Reason, exchange *string, detail string) (meaning, fix string) {
	if r == outbox.ReasonRetriesExceeded {
		last, _, _ := strings.Cut(detail, ":")
		if last := outbox.Reason(last); last != r {
			meaning, fix = OfReason(last, exchange, detail)
		}
		if meaning == "" {
			return "each attempt failed", ReadError
		}
		return meaning, fix
	}
	name, known := ExchangeOf(exchange, detail)
	to := "the exchange"
	if known {
		to += fmt.Sprintf(" %q", outbox.Shortened(name))
	}
	switch r {
	case outbox.ReasonNack:
		return "a queue rejected the message: usually it is full, and has overflow reject-publish",
			"add consumers, or raise the limit of the queue"
	case outbox.ReasonUnroutable:
		if known && name == "" {
			return "the default exchange needs a queue with the name of the routing key, and there is none",
				"declare a queue with the name of the routing key, or use another exchange"
		}
		return "no queue is bound to the exchange for this routing key",
			"bind a queue to " + to + " for this routing key"
	case outbox.ReasonNoExchange:
		return "the exchange does not exist", "declare " + to + " and bind a queue to it"
	case outbox.ReasonAccessRefused:
		meaning, fix = "the relay's RabbitMQ user may not publish to the exchange",
			"let the relay's RabbitMQ user write to "+to+" (rabbitmqctl set_permissions)"
		switch {
		case strings.Contains(detail, "internal exchange '"):
			fix = "use an exchange that is bound to " + to + ": clients cannot publish to an internal one"
		case exchange != nil: // an application can insert any name
			fix = "if applications may use " + to + ", " + fix
		}
		return meaning, fix
	case outbox.ReasonChannelClosed:
		return "RabbitMQ closed the channel because of this message", ReadError
	case outbox.ReasonTooLarge:
		return "the body is larger than RabbitMQ's max_message_size", "raise max_message_size in rabbitmq.conf"
	case outbox.ReasonInvalidHeaders:
		return "AMQP cannot carry the headers", "correct the headers in the dead-letter table"
	case outbox.ReasonInvalidProperties:
		return "a property is unknown, or has a wrong value", "correct the properties in the dead-letter table"
	case outbox.ReasonInvalidRouting:
		return "the exchange or the routing key is longer than 255 bytes",
			"shorten the exchange or the routing key in the dead-letter table"
	case outbox.ReasonHandlerRejected:
		return "the handler rejected the message, or ended while it processed the message", ReadError
	case outbox.ReasonHandlerImpossible:
		return "the handler cannot deliver the message", ReadError
	case outbox.ReasonInvalidRow:
		return "the row contains no valid message", "correct in the dead-letter table what the last error reports"
	case outbox.ReasonByHand:
		return "a person moved the message to the dead letters", "resend it when its cause is gone, or delete it"
	case outbox.ReasonExpired:
		return "its expires_at passed before the relay could publish it",
			"check that consumers still need the message: it does not expire again"
	}
	return "", ""
}

// ReadError is the advice of OfReason if only the last error tells what to do.
const ReadError = "fix what the last error says"

// ExchangeOf returns the exchange of a rejected message: that of the row, or the one that RabbitMQ's answer names.
func ExchangeOf(exchange *string, detail string) (name string, known bool) {
	if exchange != nil {
		return *exchange, true
	}
	answer := regexp.MustCompile(
		` from exchange ("(?:[^"\\]|\\.)*")$|(?:^|: )(?:NOT_FOUND|ACCESS_REFUSED) - [a-z ]+ exchange '(.+)' in vhost '`)
	switch m := answer.FindStringSubmatch(detail); {
	case m == nil:
		return "", false
	case m[1] != "":
		name, err := strconv.Unquote(m[1])
		return name, err == nil
	default:
		return m[2], true
	}
}
