package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// tail is the data of the page of the newest messages.
type tail struct {
	// Paused: the page does not update itself.
	Paused bool
	// Kept: published messages are kept, so that the page can show them.
	Kept bool
	table
}

// mostTail is how many messages the page shows.
const mostTail = 50

// tailPage shows the newest messages of the three tables, by their id.
func (c *Console) tailPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	if err := onlyParameters(r, "paused"); err != nil {
		return nil, err
	}
	t := tail{Paused: r.Form.Has("paused"), table: table{Label: "Newest messages"}}
	// In the order in which a message moves, so that none is missed between two reads.
	waiting, err := tables.NewestWaiting(ctx, mostTail)
	if err != nil {
		return nil, err
	}
	part := operator.Page{Limit: mostTail}
	dead, err := tables.List(ctx, operator.Filter{State: operator.Dead}, part)
	if err != nil {
		return nil, err
	}
	published := operator.Listing[operator.Message]{}
	if t.Kept, err = tables.HasHistory(ctx); err == nil && t.Kept {
		published, err = tables.List(ctx, operator.Filter{State: operator.Published}, part)
	}
	if err != nil {
		return nil, err
	}
	var newest []passed
	moved := map[outbox.UUID]bool{}
	for _, m := range published.Rows {
		moved[m.MessageID] = true
		newest = append(newest, passed{m.StoredMessage, "published", "good", latency(m.PublishedAt.Sub(m.CreatedAt))})
	}
	for _, m := range dead.Rows {
		moved[m.MessageID] = true
		newest = append(newest, passed{m.StoredMessage, "dead", "bad", ""})
	}
	for _, w := range waiting {
		if moved[w.MessageID] {
			continue
		}
		level := "plain"
		if w.State == operator.Retrying || w.State == operator.Expired {
			level = "warning"
		}
		newest = append(newest, passed{w.StoredMessage, show.StateText(w.State), level, ""})
	}
	slices.SortFunc(newest, func(a, b passed) int { return cmp.Compare(b.ID, a.ID) })
	for _, m := range newest[:min(len(newest), mostTail)] {
		t.addMessage(m.StoredMessage, []cell{
			{Head: "Inserted", At: m.CreatedAt, Class: "word"},
			stateCell(m.state, m.level),
			{Head: "Insert to confirm", Text: m.took, Class: "word"},
		}, c.addressCells(m.StoredMessage), failureCells(m.StoredMessage)[1:])
	}
	t.done()
	return t, nil
}

// passed is one message, wherever it is.
type passed struct {
	operator.StoredMessage
	state, level, took string
}

// latency is a time in milliseconds below ten seconds.
func latency(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return show.Duration(d)
}
