package show

import (
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
)

// Explained is the JSON output of explain, usually with one message. docs/commands.md documents its keys.
type Explained struct {
	// Messages has an explainedRow, explainedDeadLetter or explainedPublished each; the field where tells which.
	Messages []any `json:"messages"`
	// Streaming: a relay of the table owns the slot.
	Streaming bool       `json:"streaming"`
	Owner     *ownerView `json:"owner"`
}

type explainedRow struct {
	Where string         `json:"where"` // outbox
	State operator.State `json:"state"`
	// Next says in words what happens next; NextAt when, if that is known.
	Next        string     `json:"next"`
	NextAt      *time.Time `json:"next_at"`
	AvailableAt *time.Time `json:"available_at"`
	LockedBy    int32      `json:"locked_by,omitempty"`
	// Session is the session that has locked the row, or the row before it in its key.
	Session *ownerView `json:"session"`
	Message
	Ordering *orderingView `json:"ordering"`
}

type explainedDeadLetter struct {
	Where string         `json:"where"` // dead_letter
	State operator.State `json:"state"` // dead
	Next  string         `json:"next"`
	DeadLetter
}

// explainedPublished is a message in the history.
type explainedPublished struct {
	Where string         `json:"where"` // published
	State operator.State `json:"state"` // published
	Next  string         `json:"next"`
	Published
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
func (s Surroundings) View(
	waiting []operator.Waiting, dead []operator.DeadMessage, published []operator.PublishedMessage,
) Explained {
	v := Explained{Messages: []any{}, Streaming: s.relayed(), Owner: viewOfOwner(s.slot)}
	for _, w := range waiting {
		o := s.outlookOf(w)
		row := explainedRow{
			Where: "outbox", State: w.State, Next: o.text, NextAt: TimeOrNull(o.at),
			AvailableAt: TimeOrNull(w.AvailableAt), LockedBy: w.LockedBy,
			Session: viewOfSession(w.Session), Message: MessageOf(w.StoredMessage),
		}
		if w.OrderingKey != nil {
			row.Ordering = &orderingView{
				RowsBefore: w.Before.N, RowsBeforePrecision: w.Before.Precision, DeadLetters: w.DeadOfKey.N,
			}
			if f := w.First; f != nil {
				row.Ordering.First = &firstView{
					ID: f.ID, State: f.State, LockedBy: f.LockedBy, AvailableAt: TimeOrNull(f.AvailableAt),
					Attempts: f.Attempts, LastError: f.LastError,
				}
			}
		}
		v.Messages = append(v.Messages, row)
	}
	for _, letter := range dead {
		view := DeadLetterOf(s.Table, letter)
		v.Messages = append(v.Messages, explainedDeadLetter{
			Where:      "dead_letter",
			State:      "dead",
			Next:       "nothing, until it is requeued: " + view.RequeueWith,
			DeadLetter: view,
		})
	}
	for _, m := range published {
		v.Messages = append(v.Messages, explainedPublished{
			Where: "published", State: "published", Next: "nothing: it was published", Published: PublishedOf(m),
		})
	}
	return v
}

func viewOfSession(s *operator.Session) *ownerView {
	if s == nil {
		return nil
	}
	return &ownerView{PID: uint32(s.PID), Application: s.Application, Client: s.Client, Since: TimeOrNull(s.Since)}
}
