package outbox

import "time"

// Outcome says what became of one attempt to publish a message.
type Outcome uint8

const (
	// Confirmed: the broker took the message over (positive confirm, no return).
	Confirmed Outcome = iota + 1
	// Refused: the broker answered for this very message that it does not take it
	// (nack, unroutable, missing exchange, no permission). It costs one attempt.
	Refused
	// Impossible: the message can never be published (too large, headers that AMQP
	// cannot carry). It goes to the dead-letter table at once.
	Impossible
	// Unknown: the message was sent and its confirm was lost with the connection,
	// or never came. The broker may have it. It costs no attempt; publishing it
	// again may make a duplicate.
	Unknown
	// NotSent: an outage came before the message was sent. It costs no attempt.
	NotSent
)

// String is the name used in logs and metrics.
func (o Outcome) String() string {
	switch o {
	case Confirmed:
		return "confirmed"
	case Refused:
		return "refused"
	case Impossible:
		return "impossible"
	case Unknown:
		return "unknown"
	case NotSent:
		return "not_sent"
	}
	return "invalid"
}

// Reason is a short, stable code of why a message was not confirmed. It stands
// in failure_reason of the dead-letter table and in metrics; the words for people
// are in Result.Detail.
type Reason string

// The reasons of Refused.
const (
	ReasonNack            Reason = "nack"              // basic.nack, e.g. overflow reject-publish
	ReasonUnroutable      Reason = "unroutable"        // basic.return: no queue is bound for the routing key
	ReasonNoExchange      Reason = "exchange_missing"  // channel closed with 404
	ReasonAccessRefused   Reason = "access_refused"    // channel closed with 403
	ReasonChannelClosed   Reason = "broker_rejected"   // channel closed for this message, other code
	ReasonHandlerRejected Reason = "handler_rejected"  // the handler of --publisher exec said rejected
	ReasonRetriesExceeded Reason = "retries_exhausted" // the last of --max-retries retries or max_attempts attempts was rejected
)

// The reasons of Impossible.
const (
	ReasonTooLarge          Reason = "too_large"          // body beyond the broker's max_message_size
	ReasonInvalidHeaders    Reason = "invalid_headers"    // headers that AMQP cannot carry
	ReasonInvalidProperties Reason = "invalid_properties" // unknown property or wrong type
	ReasonInvalidRouting    Reason = "invalid_routing"    // exchange or routing key beyond 255 bytes
	ReasonInvalidRow        Reason = "invalid_row"        // neither or both payloads, …
	ReasonHandlerImpossible Reason = "handler_impossible" // the handler of --publisher exec said impossible
	ReasonExpired           Reason = "expired"            // its expires_at has passed
)

// ReasonCoalesced is that of a row which was deleted since a newer one with its coalesce key waits.
const ReasonCoalesced Reason = "coalesced"

// MayHaveArrived tells whether a message that was not confirmed may stand in a queue
// all the same: its confirm was lost, or, after a nack, another of several queues
// that it was routed to took it. Published again it may be a duplicate.
func (r Result) MayHaveArrived() bool {
	return r.MaybeSent || r.Outcome == Unknown || r.Reason == ReasonNack
}

// Result is what the publisher reports, exactly once, for each message it was
// given.
type Result struct {
	Message *Message
	Outcome Outcome
	// Reason is empty for Confirmed.
	Reason Reason
	// MaybeSent tells that the message had been sent before in this attempt, and that
	// confirm was lost: Outcome is that of the repeat, and the first may have arrived.
	MaybeSent bool
	// RetryIn is when to try again after Refused, in place of the relay's backoff; 0: the backoff decides.
	RetryIn time.Duration
	// Detail is one line for people: what the broker said, or what is wrong with
	// the message. It holds no payload and no password.
	Detail string
}
