package outbox

import "strings"

// Advice explains a code of docs/delivery.md, and says what to do first; "": it is a code of an embedding program. A
// nil exchange is the one that the relay chose: detail, the text of the rejection, names it.
func (r Reason) Advice(exchange *string, detail string) (meaning, fix string) {
	switch r {
	case ReasonNack:
		return "RabbitMQ answered with a nack, such as a full queue with overflow: reject-publish",
			"make room in the queue"
	case ReasonUnroutable:
		if exchange != nil && *exchange == "" || exchange == nil && strings.HasSuffix(detail, ` from exchange ""`) {
			return "the default exchange delivers to the queue with the name of the routing key, and there is none",
				"create a queue with the name of the routing key, or name another exchange"
		}
		return "no queue is bound for its routing key", "bind a queue to the exchange, for its routing key"
	case ReasonNoExchange:
		return "there is no such exchange", "declare the exchange"
	case ReasonAccessRefused:
		return "the relay's RabbitMQ user may not write there", "give it the permission"
	case ReasonChannelClosed:
		return "RabbitMQ closed the channel because of this message", "see the last error"
	case ReasonTooLarge:
		return "the body is beyond RabbitMQ's max_message_size", "raise max_message_size"
	case ReasonInvalidHeaders:
		return "AMQP cannot carry its headers", "fix the headers in the dead-letter table"
	case ReasonInvalidProperties:
		return "RabbitMQ rejects one of its properties", "fix the properties in the dead-letter table"
	case ReasonInvalidRouting:
		return "its exchange or routing key is beyond 255 bytes", "fix them in the dead-letter table"
	case ReasonHandlerRejected:
		return "the handler rejected it, or ended at it", "see the last error"
	case ReasonHandlerImpossible:
		return "the handler cannot deliver it", "see the last error"
	case ReasonInvalidRow:
		return "something is wrong with the row", "see the last error"
	case ReasonExpired:
		return "its expires_at passed before it could be published",
			"check that it is still of use: it does not expire again"
	}
	return "", ""
}
