package problem

import (
	"strings"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// OfReason explains a code of docs/delivery.md, and says what to do first; "": it is a code of an embedding program. A
// nil exchange is the one that the relay chose: detail, the text of the rejection, names it.
func OfReason(r outbox.Reason, exchange *string, detail string) (meaning, fix string) {
	switch r {
	case outbox.ReasonNack:
		return "RabbitMQ answered with a nack, such as a full queue with overflow: reject-publish",
			"make room in the queue"
	case outbox.ReasonUnroutable:
		if exchange != nil && *exchange == "" || exchange == nil && strings.HasSuffix(detail, ` from exchange ""`) {
			return "the default exchange delivers to the queue with the name of the routing key, and there is none",
				"create a queue with the name of the routing key, or name another exchange"
		}
		return "no queue is bound for its routing key", "bind a queue to the exchange, for its routing key"
	case outbox.ReasonNoExchange:
		return "there is no such exchange", "declare the exchange"
	case outbox.ReasonAccessRefused:
		return "the relay's RabbitMQ user may not write there", "give it the permission"
	case outbox.ReasonChannelClosed:
		return "RabbitMQ closed the channel because of this message", "see the last error"
	case outbox.ReasonTooLarge:
		return "the body is beyond RabbitMQ's max_message_size", "raise max_message_size"
	case outbox.ReasonInvalidHeaders:
		return "AMQP cannot carry its headers", "fix the headers in the dead-letter table"
	case outbox.ReasonInvalidProperties:
		return "RabbitMQ rejects one of its properties", "fix the properties in the dead-letter table"
	case outbox.ReasonInvalidRouting:
		return "its exchange or routing key is beyond 255 bytes", "fix them in the dead-letter table"
	case outbox.ReasonHandlerRejected:
		return "the handler rejected it, or ended at it", "see the last error"
	case outbox.ReasonHandlerImpossible:
		return "the handler cannot deliver it", "see the last error"
	case outbox.ReasonInvalidRow:
		return "something is wrong with the row", "see the last error"
	case outbox.ReasonExpired:
		return "its expires_at passed before it could be published",
			"check that it is still of use: it does not expire again"
	}
	return "", ""
}
