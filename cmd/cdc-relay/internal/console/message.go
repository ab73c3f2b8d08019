package console

import (
	"context"
	"net/http"
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// messageShown is the data of the page of one message.
type messageShown struct {
	ID       string
	Error    string
	Messages []oneMessage
	// invalid: the ID is none.
	invalid bool
}

func (m messageShown) mistaken() bool { return m.invalid }

type oneMessage struct {
	Title string
	// Level colors the title.
	Level    string
	Timeline []step
	Facts    facts
	Contents []content
	Changes  []choice
	ID       string // the message_id
	// Command requeues it, after First; "": there is nothing to do.
	Command, First string
}

// Fields are the filter that selects the message.
func (m oneMessage) Fields() []field { return []field{{Name: "id", Value: m.ID, Set: true}} }

// Path is the page of its change.
func (m oneMessage) Path() string { return "/message" }

// messagePage shows each message that has the ID: in the outbox, among the dead letters, and in the history.
func (c *Console) messagePage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	if err := onlyParameters(r, "id"); err != nil {
		return nil, err
	}
	shown := messageShown{ID: strings.TrimSpace(r.FormValue("id"))}
	if shown.ID == "" {
		return shown, nil
	}
	name, err := operator.ParseName(shown.ID)
	if err != nil {
		shown.Error, shown.invalid = err.Error(), true
		return shown, nil
	}
	waiting, dead, err := tables.Explain(ctx, name, c.cfg.ShowPayload)
	if err != nil {
		return nil, err
	}
	around, err := show.SurroundingsOf(ctx, tables, c.cfg.Source)
	if err != nil {
		return nil, err
	}
	published, err := tables.PublishedIfKept(ctx, name, c.cfg.ShowPayload)
	if err != nil && len(waiting)+len(dead) == 0 { // the role may be allowed to read only the outbox
		return nil, err
	}
	for _, w := range waiting {
		shown.Messages = append(shown.Messages, c.waitingMessage(around, w))
	}
	for _, letter := range dead {
		shown.Messages = append(shown.Messages, c.deadMessage(letter))
	}
	for _, m := range published {
		shown.Messages = append(shown.Messages, c.publishedMessage(m))
	}
	if len(shown.Messages) == 0 {
		shown.Error = shown.ID + " is neither in the outbox, nor in the dead-letter table, nor in the history: " +
			"it was delivered and deleted, or never committed."
	}
	return shown, nil
}

func (c *Console) waitingMessage(around show.Surroundings, w operator.Waiting) oneMessage {
	one := oneMessage{Title: "Waiting", Level: "plain", ID: w.MessageID.String()}
	switch {
	case w.First != nil:
		one.Title, one.Level = "Waiting: blocked", "warning"
	case w.State != operator.AtOnce:
		one.Title += ": " + stateText(w.State)
	}
	around.Details(&one.Facts, w)
	one.Timeline = waitingSteps(w, one.Facts.take("next"))
	if w.State == operator.Retrying {
		one.Level, one.Changes = "warning", c.choices("now", "retry")
	}
	one.Changes = append(one.Changes, c.choices("", "delete")...)
	one.describe(w.StoredMessage)
	one.Facts.take("state", "place")
	return one
}

func (c *Console) deadMessage(letter operator.DeadMessage) oneMessage {
	one := oneMessage{
		Title:   "Dead letter",
		Level:   "bad",
		ID:      letter.MessageID.String(),
		Changes: c.choices("", "requeue", "purge"),
	}
	show.Details(&one.Facts, c.relay().Table.DeadLetter(), letter.StoredMessage)
	show.DeathDetails(&one.Facts, c.relay().Table, letter)
	one.Timeline = deadSteps(letter, one.Facts.take("reason"))
	one.Command = one.Facts.take("to requeue it")
	if first, then, found := strings.Cut(one.Command, ", then: "); found {
		one.First, one.Command = first, then
	}
	one.describe(letter.StoredMessage)
	one.Facts.take("dead since")
	return one
}

func (c *Console) publishedMessage(m operator.PublishedMessage) oneMessage {
	one := oneMessage{
		Title: "Published", Level: "good", ID: m.MessageID.String(), Timeline: publishedSteps(m),
		Changes: c.choices("", "replay"),
	}
	show.Details(&one.Facts, c.relay().Table.Published(), m.StoredMessage)
	one.describe(m.StoredMessage)
	return one
}

// describe sets the contents, and removes from the facts what the contents and the timeline show.
func (m *oneMessage) describe(of operator.StoredMessage) {
	contents, names := contentsOf(of)
	m.Contents = contents
	m.Facts.take(append(names, "created", "last error", "expires", "expired", "mark")...)
}
