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
	Rows []tailRow
}

// tailRow is one message, wherever it is.
type tailRow struct {
	ID                       int64
	Inserted, State          string
	Level                    string
	Exchange, OrderingKey    *string
	RoutingKey, Took, Reason string
}

// mostTail is how many messages the page shows.
const mostTail = 50

// tailPage shows the newest messages of the three tables, by their id.
func (c *Console) tailPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	if err := onlyParameters(r, "paused"); err != nil {
		return nil, err
	}
	t := tail{Paused: r.Form.Has("paused")}
	// In the order in which a message moves, so that none is missed between two reads.
	waiting, err := tables.NewestWaiting(ctx, mostTail)
	if err != nil {
		return nil, err
	}
	newest := operator.Page{Limit: mostTail}
	dead, err := tables.List(ctx, operator.Filter{State: operator.Dead}, newest)
	if err != nil {
		return nil, err
	}
	published := operator.Listing[operator.Message]{}
	if t.Kept, err = tables.HasHistory(ctx); err == nil && t.Kept {
		published, err = tables.List(ctx, operator.Filter{State: operator.Published}, newest)
	}
	if err != nil {
		return nil, err
	}
	moved := map[outbox.UUID]bool{}
	for _, m := range published.Rows {
		moved[m.MessageID] = true
		t.add(m.StoredMessage, "published", "good", latency(m.PublishedAt.Sub(m.CreatedAt)))
	}
	for _, m := range dead.Rows {
		moved[m.MessageID] = true
		t.add(m.StoredMessage, "dead", "bad", "")
	}
	for _, w := range waiting {
		if moved[w.MessageID] {
			continue
		}
		level := "plain"
		if w.State == operator.Retrying || w.State == operator.Expired {
			level = "warning"
		}
		t.add(w.StoredMessage, stateText(w.State), level, "")
	}
	slices.SortFunc(t.Rows, func(a, b tailRow) int { return cmp.Compare(b.ID, a.ID) })
	t.Rows = t.Rows[:min(len(t.Rows), mostTail)]
	return t, nil
}

func (t *tail) add(m operator.StoredMessage, state, level, took string) {
	t.Rows = append(t.Rows, tailRow{
		ID: m.ID, Inserted: m.CreatedAt.UTC().Format("15:04:05.000"), State: state, Level: level, Exchange: m.Exchange,
		OrderingKey: m.OrderingKey, RoutingKey: m.RoutingKey, Took: took, Reason: show.ValueOr(m.LastError, ""),
	})
}

// latency is a time in milliseconds below ten seconds.
func latency(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return show.Duration(d)
}
