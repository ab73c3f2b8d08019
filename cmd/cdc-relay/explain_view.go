package main

import (
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
)

// explainView is the JSON output of explain, usually with one message. docs/commands.md documents its keys.
type explainView struct {
	Messages []any `json:"messages"` // explainedRow, explainedDeadLetter or explainedPublished; the field where tells which
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
	messageView
	Ordering *orderingView `json:"ordering"`
}

type explainedDeadLetter struct {
	Where string         `json:"where"` // dead_letter
	State operator.State `json:"state"` // dead
	Next  string         `json:"next"`
	deadView
}

// explainedPublished is a message in the history.
type explainedPublished struct {
	Where string         `json:"where"` // published
	State operator.State `json:"state"` // published
	Next  string         `json:"next"`
	publishedView
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

func (s surroundings) view(waiting []operator.Waiting, dead []operator.DeadMessage, published []operator.PublishedMessage) explainView {
	v := explainView{Messages: []any{}, Streaming: s.relayed(), Owner: viewOfOwner(s.slot)}
	for _, w := range waiting {
		o := s.outlookOf(w)
		row := explainedRow{
			Where: "outbox", State: w.State, Next: o.text, NextAt: orNull(o.at), AvailableAt: orNull(w.AvailableAt), LockedBy: w.LockedBy,
			Session: viewOfSession(w.Session), messageView: viewOf(w.StoredMessage),
		}
		if w.OrderingKey != nil {
			row.Ordering = &orderingView{RowsBefore: w.Before.N, RowsBeforePrecision: w.Before.Precision, DeadLetters: w.DeadOfKey.N}
			if f := w.First; f != nil {
				row.Ordering.First = &firstView{ID: f.ID, State: f.State, LockedBy: f.LockedBy, AvailableAt: orNull(f.AvailableAt), Attempts: f.Attempts, LastError: f.LastError}
			}
		}
		v.Messages = append(v.Messages, row)
	}
	for _, letter := range dead {
		view := s.cfg.deadViewOf(letter)
		v.Messages = append(v.Messages, explainedDeadLetter{
			Where: "dead_letter", State: "dead", Next: "nothing, until it is requeued: " + view.RequeueWith, deadView: view,
		})
	}
	for _, m := range published {
		v.Messages = append(v.Messages, explainedPublished{
			Where: "published", State: "published", Next: "nothing: it was published", publishedView: publishedViewOf(m),
		})
	}
	return v
}

func viewOfSession(s *operator.Session) *ownerView {
	if s == nil {
		return nil
	}
	return &ownerView{PID: uint32(s.PID), Application: s.Application, Client: s.Client, Since: orNull(s.Since)}
}

// showExplained prints the messages for people.
func (p *process) showExplained(s surroundings, waiting []operator.Waiting, dead []operator.DeadMessage, published []operator.PublishedMessage) error {
	for i, w := range waiting {
		if i > 0 {
			fmt.Fprintln(p.stdout)
		}
		g := p.newTable()
		p.waitingDetails(g, s, w)
		if err := g.write(); err != nil {
			return err
		}
	}
	for i, letter := range dead {
		if err := p.showDeadLetter(s.cfg, letter, i+len(waiting) > 0); err != nil {
			return err
		}
	}
	for i, m := range published {
		if err := p.showPublished(s.cfg, m, i+len(waiting)+len(dead) > 0); err != nil {
			return err
		}
	}
	return nil
}

func (p *process) waitingDetails(g rows, s surroundings, w operator.Waiting) {
	g.row("where", s.cfg.relay.Table.String())
	g.row("state", string(w.State))
	g.row("next", s.outlookOf(w).text)
	g.row("a relay streams", s.streaming())
	p.details(g, s.cfg.relay.Table, w.StoredMessage)
	if w.OrderingKey != nil {
		p.showPlace(g, w)
	}
}

func (p *process) showPlace(g rows, w operator.Waiting) {
	place := "the first of its key"
	if f := w.First; f != nil {
		place = fmt.Sprintf("behind %s; the first is row %d (%s, %s)", countRows(w.Before), f.ID, f.State, rowsText(int64(f.Attempts), "attempt"))
		if f.LastError != nil {
			place += ": " + shortened(*f.LastError, 100)
		}
	}
	if w.DeadOfKey.N > 0 {
		place += fmt.Sprintf("; dead letters of its key: %s, first row %d", countOf(w.DeadOfKey), w.OldestDeadOfKey)
	}
	g.row("place", place)
}
