package outbox

import "time"

// Action is what the relay does with a row.
type Action uint8

const (
	// Delete: the broker confirmed the message, or it is not needed any more (Reason).
	Delete Action = iota + 1
	// Retry: the row waits for Delay. If the message was rejected, one attempt is charged.
	Retry
	// DeadLetter: the row moves to the dead-letter table.
	DeadLetter
	// Release: nothing is charged. The row stays unchanged.
	Release
)

// Decision is what to do with a row after one result.
type Decision struct {
	Action Action
	Delay  time.Duration // Retry: on the database's clock
	Reason Reason        // Retry, DeadLetter; Delete of an unpublished message
	Detail string        // Retry, DeadLetter: last_error
	// KeyGoesOn: later rows of the ordering key may leave before this row has moved, because it will never leave again.
	KeyGoesOn bool
}

// Settlement is a row with its decision.
type Settlement struct {
	Message  *Message
	Decision Decision
	// Rejected: the broker rejected the message, so one attempt is charged.
	Rejected bool
	// Locked: another session had locked the row at the last try.
	Locked bool
	// Tried: an earlier try to write this has failed, or has had no answer. It may have been written.
	Tried bool
	// Since is when the row could not be written for the first time; zero: it was not tried, or could.
	Since time.Time
	// Fault is why the row could be neither deleted nor updated at an earlier try; nil: it was not tried, or could.
	Fault *Fault
}

// NewSettlement returns the settlement of a result's message.
func NewSettlement(r Result, decision Decision) Settlement {
	return Settlement{Message: r.Message, Decision: decision, Rejected: r.Outcome == Rejected}
}

// Fault is why a row can be neither deleted nor updated.
type Fault struct {
	// Error is the server's text, Fix the command or SQL that may cure it. Both are one line.
	Error, Fix string
}
