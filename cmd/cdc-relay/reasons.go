package main

import (
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/operator"
)

// meaningOf explains a code of docs/contract.md, and says what to do first.
func meaningOf(code string) (meaning, fix string) {
	switch code {
	case "nack":
		return "RabbitMQ answered with a nack, such as a full queue with overflow: reject-publish", "make room in the queue"
	case "unroutable":
		return "no queue is bound for its routing key", "make the binding"
	case "exchange_missing":
		return "there is no such exchange", "declare the exchange"
	case "access_refused":
		return "the relay's RabbitMQ user may not write there", "give it the permission"
	case "broker_rejected":
		return "RabbitMQ closed the channel because of this message", "see the last error"
	case "too_large":
		return "the body is beyond RabbitMQ's max_message_size", "raise max_message_size"
	case "invalid_headers":
		return "AMQP cannot carry its headers", "fix the headers in the dead-letter table"
	case "invalid_properties":
		return "RabbitMQ rejects one of its properties", "fix the properties in the dead-letter table"
	case "invalid_routing":
		return "its exchange or routing key is beyond 255 bytes", "fix them in the dead-letter table"
	case "handler_rejected":
		return "the handler rejected it, or ended at it", "see the last error"
	case "handler_impossible":
		return "the handler cannot deliver it", "see the last error"
	case "invalid_row":
		return "something is wrong with the row", "see the last error"
	case "expired":
		return "its expires_at passed before it could be published", "check that it is still of use: it does not expire again"
	}
	return "", ""
}

// reasonCodes are the codes of docs/contract.md. The publisher of an embedding program may have others.
func reasonCodes() []string {
	return []string{
		"nack", "unroutable", "exchange_missing", "access_refused", "broker_rejected", "handler_rejected", "retries_exhausted",
		"too_large", "invalid_headers", "invalid_properties", "invalid_routing", "invalid_row", "handler_impossible", "expired",
	}
}

// reasonText says why a message became a dead letter. For exhausted retries, that is the last rejection.
func reasonText(m operator.DeadMessage) (text, fix string) {
	code := m.Reason
	if m.Reason == "retries_exhausted" && m.LastError != nil {
		code, _, _ = strings.Cut(*m.LastError, ":")
	}
	meaning, fix := meaningOf(code)
	text = printable(m.Reason)
	if meaning != "" {
		text += ": " + meaning
	}
	return text, fix
}
