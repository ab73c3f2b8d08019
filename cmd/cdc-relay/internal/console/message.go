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
	// mistaken: the ID is none.
	mistaken bool
}

type oneMessage struct {
	Title   string
	Facts   facts
	Changes []string
	ID      string // the message_id
}

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
		shown.Error, shown.mistaken = err.Error(), true
		return shown, nil
	}
	waiting, dead, err := tables.Explain(ctx, name, c.cfg.ShowPayload)
	if err != nil {
		return nil, err
	}
	around, err := show.SurroundingsOf(ctx, tables, c.cfg.Relay, c.cfg.RelayAddr)
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
	one := oneMessage{Title: "Waiting: " + string(w.State), ID: w.MessageID.String()}
	around.Details(&one.Facts, w)
	if w.State == operator.Retrying {
		one.Changes = c.changes("retry")
	}
	return one
}

func (c *Console) deadMessage(letter operator.DeadMessage) oneMessage {
	one := oneMessage{
		Title:   "Dead letter",
		ID:      letter.MessageID.String(),
		Changes: c.changes("requeue", "purge"),
	}
	show.Details(&one.Facts, c.cfg.Relay.Table.DeadLetter(), letter.StoredMessage)
	show.DeathDetails(&one.Facts, c.cfg.Relay.Table, letter)
	return one
}

func (c *Console) publishedMessage(m operator.PublishedMessage) oneMessage {
	one := oneMessage{Title: "Published", ID: m.MessageID.String()}
	ago := show.Duration(m.ReadAt.Sub(m.PublishedAt)) + " ago"
	one.Facts.Row("published", show.Time(m.PublishedAt)+", "+ago)
	show.Details(&one.Facts, c.cfg.Relay.Table.Published(), m.StoredMessage)
	return one
}
