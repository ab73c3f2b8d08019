package outbox

import "time"

// Action is what becomes of a row.
type Action uint8

// The actions.
const (
	// Delete: the broker confirmed the message, or it has no use any more (Reason).
	Delete Action = iota + 1
	// Retry: one attempt is charged, and the row waits for Delay.
	Retry
	// DeadLetter: the row moves to the dead-letter table.
	DeadLetter
	// Release: nothing is charged. A claimed row is left as it was, with what is known of duplicates.
	Release
	// Postpone: the broker has not answered yet. Nobody claims the row again before Delay is over.
	Postpone
)

// Decision says what becomes of a row after one result.
type Decision struct {
	Action Action
	Delay  time.Duration // Retry, Postpone: from the database's clock
	Reason Reason        // DeadLetter; Delete of a message that was not published
	Detail string        // Retry, DeadLetter: last_error
	// KeyGoesOn: what follows in the ordering key may leave before the row has moved: it would never leave again.
	KeyGoesOn bool
}

// Settlement is a row and what is to become of it.
type Settlement struct {
	Message  *Message
	Decision Decision
	// Refused tells that the broker rejected the message: one attempt is charged.
	Refused bool
	// Locked tells that another session had locked the row when it was tried last.
	Locked bool
	// Aside tells that nothing could be written of the row when it was tried last.
	Aside bool
}

// NewSettlement is what becomes of the message of a result.
func NewSettlement(r Result, decision Decision) Settlement {
	return Settlement{Message: r.Message, Decision: decision, Refused: r.Outcome == Refused}
}
