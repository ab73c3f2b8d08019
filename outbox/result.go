package outbox

import "time"

// Outcome is the outcome of one attempt to publish a message.
type Outcome uint8

const (
	// Confirmed: the broker took the message (positive confirm, no return).
	Confirmed Outcome = iota + 1
	// Rejected: the broker answered that it does not take this message (nack, unroutable, missing exchange, no
	// permission). It costs one attempt.
	Rejected
	// Impossible: the message can never be published (too large, headers that AMQP cannot carry). It becomes a dead
	// letter at once.
	Impossible
	// Unknown: the message was sent, and its confirm was lost or never came. The broker may have it, so publishing it
	// again may make a duplicate. It costs no attempt.
	Unknown
	// NotSent: an outage came before the message was sent, or the publisher had no room for it (NoRoom). It costs no
	// attempt.
	NotSent
)

// String returns the name in logs and metrics.
func (o Outcome) String() string {
	switch o {
	case Confirmed:
		return "confirmed"
	case Rejected:
		return "rejected"
	case Impossible:
		return "impossible"
	case Unknown:
		return "unknown"
	case NotSent:
		return "not_sent"
	}
	return "invalid"
}

// Reason is a short, stable code for why a message was not confirmed, used in failure_reason and in metrics.
// Result.Detail has the text for people.
type Reason string

// The reasons of Rejected.
const (
	ReasonNack            Reason = "nack"              // basic.nack, e.g. overflow reject-publish
	ReasonUnroutable      Reason = "unroutable"        // basic.return: no queue is bound for the routing key
	ReasonNoExchange      Reason = "exchange_missing"  // channel closed with 404
	ReasonAccessRefused   Reason = "access_refused"    // channel closed with 403
	ReasonChannelClosed   Reason = "broker_rejected"   // channel closed because of this message, with another code
	ReasonHandlerRejected Reason = "handler_rejected"  // the handler answered rejected, or ended at the message
	ReasonRetriesExceeded Reason = "retries_exhausted" // the last retry or attempt was rejected
)

// The reasons of Impossible.
const (
	ReasonTooLarge          Reason = "too_large"          // body larger than the broker's max_message_size
	ReasonInvalidHeaders    Reason = "invalid_headers"    // headers that AMQP cannot carry
	ReasonInvalidProperties Reason = "invalid_properties" // unknown property or wrong type
	ReasonInvalidRouting    Reason = "invalid_routing"    // exchange or routing key longer than 255 bytes
	ReasonInvalidRow        Reason = "invalid_row"        // such as neither or both payloads; see Message.Defect
	ReasonHandlerImpossible Reason = "handler_impossible" // the handler answered impossible
	ReasonExpired           Reason = "expired"            // its expires_at has passed
)

// Reasons returns the reasons of the relay, in the order of the documentation. The publisher of an embedding program
// may have others.
func Reasons() []Reason {
	return []Reason{
		ReasonNack, ReasonUnroutable, ReasonNoExchange, ReasonAccessRefused, ReasonChannelClosed, ReasonHandlerRejected,
		ReasonRetriesExceeded, ReasonTooLarge, ReasonInvalidHeaders, ReasonInvalidProperties, ReasonInvalidRouting,
		ReasonInvalidRow, ReasonHandlerImpossible, ReasonExpired,
	}
}

// ReasonByHand is the reason of a row that a person has moved to the dead letters.
const ReasonByHand Reason = "by_hand"

// ReasonCoalesced is the reason of a row that was deleted because a newer one with its coalesce key waits.
const ReasonCoalesced Reason = "coalesced"

// NoRoom reports whether the publisher works, and had no room for the message. The row then waits in the table for
// RetryIn.
func (r Result) NoRoom() bool { return r.Outcome == NotSent && r.RetryIn > 0 && r.Reason == "" }

// MayHaveArrived reports whether an unconfirmed message may be in a queue nevertheless. Its confirm was lost, or after
// a nack another of several queues took it. Publishing it again may make a duplicate.
func (r Result) MayHaveArrived() bool {
	return r.MaybeSent || r.Outcome == Unknown || r.Reason == ReasonNack
}

// Result is the publisher's report on a message, exactly one for each published message.
type Result struct {
	Message *Message
	Outcome Outcome
	// Reason is empty for Confirmed. With RetryIn, a message that was NotSent may have one.
	Reason Reason
	// MaybeSent: the message was sent twice in this attempt, and the first confirm was lost. Outcome is that of the
	// second sending; the first may have arrived.
	MaybeSent bool
	// RetryIn is the wait after Rejected, instead of the relay's backoff; 0: the backoff applies. After NotSent or
	// Unknown it says that the other side works and that only this message must wait; 0: it leaves again when messages
	// may.
	RetryIn time.Duration
	// Detail is one line for people: the broker's text, or what is wrong with the message. It never has a payload or a
	// password.
	Detail string
}
