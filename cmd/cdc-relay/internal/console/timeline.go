package console

import (
	"fmt"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// step is one event in the life of a message.
type step struct {
	// At is when it happened or will happen, in words; "": the tables do not say.
	At, Ago, Name string
	// Text explains it; Links lead to messages that it mentions.
	Text  string
	Links []messageLink
	// Level colors it: past, now, next, good, warning, bad.
	Level string
}

// messageLink is a link to another message.
type messageLink struct {
	Text string
	ID   int64
}

// stepAt returns a step at a time, which is in the future if it is after now.
func stepAt(name, level string, at, now time.Time) step {
	s := step{Name: name, Level: level, At: show.Time(at), Ago: show.Duration(now.Sub(at)) + " ago"}
	if at.After(now) {
		s.Ago = "in " + show.Duration(at.Sub(now))
	}
	return s
}

// beginning are the steps that every message has. The tables keep the number of rejections and the newest one, and not
// their times.
func beginning(m operator.Message) []step {
	inserted := stepAt("Inserted", "past", m.CreatedAt, m.ReadAt)
	inserted.Text = "The start of its transaction."
	steps := []step{inserted}
	if m.Attempts > 0 {
		rejected := step{Name: "Rejected", Level: "bad", Text: show.Printable(show.ValueOr(m.LastError, ""))}
		if m.Attempts > 1 {
			rejected.Name = fmt.Sprintf("Rejected %d times", m.Attempts)
			rejected.Text = "Last: " + rejected.Text
		}
		steps = append(steps, rejected)
	}
	if m.PossibleDuplicate {
		steps = append(steps, step{
			Name: "Possibly published", Level: "past", Text: "No confirm is known, so it is sent with a mark.",
		})
	}
	return steps
}

// waitingSteps continues with what a row of the outbox waits for. Next says it in words.
func waitingSteps(w operator.Message, next string) []step {
	steps := beginning(w)
	if w.AvailableAt != nil && w.Attempts == 0 {
		level := "past"
		if w.AvailableAt.After(w.ReadAt) {
			level = "next"
		}
		steps = append(steps, stepAt("Scheduled", level, *w.AvailableAt, w.ReadAt))
	}
	next = strings.ToUpper(next[:1]) + next[1:] + "."
	now := step{Name: "Now: " + show.StateText(w.State), Level: "now", Text: next}
	if f := w.First; f != nil {
		now.Links = append(now.Links, messageLink{fmt.Sprintf("the message that blocks it, row %d", f.ID), f.ID})
	}
	if w.DeadOfKey.N > 0 {
		text := fmt.Sprintf("the oldest dead letter of its key, row %d", w.OldestDeadOfKey)
		now.Links = append(now.Links, messageLink{text, w.OldestDeadOfKey})
	}
	steps = append(steps, now)
	if w.State == operator.Retrying && w.AvailableAt != nil {
		again := stepAt("Next try", "next", *w.AvailableAt, w.ReadAt)
		if now.Name == "Now: retrying" {
			again.Text, steps[len(steps)-1].Text = next, ""
		}
		steps = append(steps, again)
	}
	if w.ExpiresAt != nil {
		name := "Expires"
		if !w.ExpiresAt.After(w.ReadAt) {
			name = "Expired"
		}
		steps = append(steps, stepAt(name, "warning", *w.ExpiresAt, w.ReadAt))
	}
	return steps
}

func deadSteps(m operator.Message, reason string) []step {
	died := stepAt("Dead letter", "bad", m.DeadAt, m.ReadAt)
	died.Text = reason
	return append(beginning(m), died)
}

func publishedSteps(m operator.Message) []step {
	published := stepAt("Published", "good", m.PublishedAt, m.ReadAt)
	published.Text = fmt.Sprintf("RabbitMQ has confirmed it, %s after it was inserted.",
		show.Duration(m.PublishedAt.Sub(m.CreatedAt)))
	return append(beginning(m), published)
}
