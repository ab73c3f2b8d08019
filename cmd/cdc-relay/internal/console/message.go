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
	// Command sends it again, after First; "": there is nothing to do.
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
	around, err := show.SurroundingsOf(ctx, tables, c.cfg.Source)
	if err != nil {
		return nil, err
	}
	found, err := tables.Find(ctx, name, around.Known(), c.cfg.ShowPayload)
	if err != nil {
		return nil, err
	}
	for _, m := range around.Told(found) {
		shown.Messages = append(shown.Messages, c.shownMessage(around, m))
	}
	if len(shown.Messages) == 0 {
		kept, err := tables.HasHistory(ctx)
		if err != nil {
			return nil, err
		}
		shown.Error = shown.ID + " is not here. " + show.Nowhere(kept)
	}
	return shown, nil
}

func (c *Console) shownMessage(around show.Surroundings, m operator.Message) oneMessage {
	one := oneMessage{ID: m.MessageID.String()}
	around.Details(&one.Facts, m)
	switch m.State {
	case operator.Dead:
		one.Title, one.Level = "Dead letter", "bad"
		one.Changes = c.choices("", operator.Requeue, operator.Purge)
		one.Timeline = deadSteps(m, one.Facts.take("reason"))
		one.Command = one.Facts.take("to resend it")
		if first, then, found := strings.Cut(one.Command, ", then: "); found {
			one.First, one.Command = first, then
		}
		one.Facts.take("where", "dead since")
	case operator.Published:
		one.Title, one.Level = "Published", "good"
		one.Changes = c.choices("", operator.Replay)
		one.Timeline = publishedSteps(m)
		one.Facts.take("where", "published")
	default:
		one.Title, one.Level = "Waiting", "plain"
		if m.State != operator.AtOnce {
			one.Title += ": " + show.StateText(m.State)
		}
		one.Timeline = waitingSteps(m, one.Facts.take("next"))
		switch m.State {
		case operator.Blocked:
			one.Level = "warning"
		case operator.Retrying:
			one.Level, one.Changes = "warning", c.choices("now", operator.Retry)
		}
		if m.Attempts > 0 {
			then := ""
			if m.OrderingKey != nil && !show.DeadLettersBlock(c.relay()) {
				then = "and let the key go on"
			}
			one.Changes = append(one.Changes, c.choices(then, operator.Bury)...)
		}
		one.Changes = append(one.Changes, c.choices("", operator.Delete)...)
		one.Facts.take("state", "place")
	}
	one.describe(m)
	return one
}

// describe sets the contents, and removes from the facts what the contents and the timeline show.
func (m *oneMessage) describe(of operator.Message) {
	contents, names := contentsOf(of)
	m.Contents = contents
	m.Facts.take(append(names, "created", "last error", "expires", "expired", "mark")...)
}
