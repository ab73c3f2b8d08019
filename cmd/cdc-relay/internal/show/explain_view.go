package show

import (
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
)

// Explained is the JSON output of explain, usually with one message. docs/commands.md documents its keys.
type Explained struct {
	Messages []explainedMessage `json:"messages"`
	// Streaming: a relay of the table owns the slot.
	Streaming bool              `json:"streaming"`
	Owner     *operator.Session `json:"owner"`
}

type explainedMessage struct {
	Message
	// Next says in words what happens next; NextAt when, if that is known.
	Next   string     `json:"next"`
	NextAt *time.Time `json:"next_at"`
	// Session is the session that has locked the row, or the row before it in its key.
	Session  *operator.Session `json:"session"`
	Ordering *orderingView     `json:"ordering"`
}

// orderingView is the position of a row in its ordering key.
type orderingView struct {
	RowsBefore          int64              `json:"rows_before"`
	RowsBeforePrecision operator.Precision `json:"rows_before_precision"`
	// First is the oldest row before it.
	First       *firstView `json:"first"`
	DeadLetters int64      `json:"dead_letters"`
}

type firstView struct {
	ID          int64          `json:"id"`
	State       operator.State `json:"state"`
	LockedBy    int32          `json:"locked_by,omitempty"`
	AvailableAt *time.Time     `json:"available_at"`
	Attempts    int            `json:"attempts"`
	LastError   *string        `json:"last_error"`
}

// View returns the JSON output for these messages.
func (s Surroundings) View(found []operator.Message) Explained {
	v := Explained{Messages: make([]explainedMessage, len(found)), Streaming: s.relayed(), Owner: viewOfOwner(s.slot)}
	for i, m := range found {
		o := s.outlookOf(m)
		one := explainedMessage{
			Message: MessageOf(m), Next: o.text, NextAt: timeOrNull(o.at), Session: m.Session,
		}
		if m.OrderingKey != nil && m.State.Waits() {
			one.Ordering = &orderingView{
				RowsBefore: m.Before.N, RowsBeforePrecision: m.Before.Precision, DeadLetters: m.DeadOfKey.N,
			}
			if f := m.First; f != nil {
				one.Ordering.First = &firstView{
					ID: f.ID, State: f.State, LockedBy: f.LockedBy, AvailableAt: timeOrNull(f.AvailableAt),
					Attempts: f.Attempts, LastError: f.LastError,
				}
			}
		}
		v.Messages[i] = one
	}
	return v
}
