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
)

// tail is the data of the page of the newest messages.
type tail struct {
	// Kept: published messages are kept, so that the page can show them.
	Kept bool
	table
}

// mostTail is how many messages the page shows.
const mostTail = 50

// tailPage shows the newest messages of the three tables, by their id.
func (c *Console) tailPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	if err := onlyParameters(r); err != nil {
		return nil, err
	}
	around, err := show.SurroundingsOf(ctx, tables, c.cfg.Source)
	if err != nil {
		return nil, err
	}
	t := tail{table: table{Label: "Newest messages"}}
	if t.Kept, err = tables.HasHistory(ctx); err != nil {
		return nil, err
	}
	// In the order in which a message moves, so that none is missed between two reads.
	var newest []operator.Message
	for _, state := range []operator.State{"", operator.Dead, operator.Published} {
		if state == operator.Published && !t.Kept {
			break
		}
		list, err := tables.List(ctx, operator.Filter{State: state, Known: around.Known()},
			operator.Page{Limit: mostTail, Newest: state == ""})
		if err != nil {
			return nil, err
		}
		newest = slices.DeleteFunc(newest, func(m operator.Message) bool { // it has moved meanwhile
			return slices.ContainsFunc(list.Rows, func(o operator.Message) bool { return o.MessageID == m.MessageID })
		})
		newest = append(newest, list.Rows...)
	}
	slices.SortStableFunc(newest, func(a, b operator.Message) int { return cmp.Compare(b.ID, a.ID) })
	columns := slices.DeleteFunc(show.MessageColumns("", c.relay().MetricsHeader),
		func(c show.Column[operator.Message]) bool { return c.Name == "Next" || c.Name == "Attempts" })
	for _, m := range newest[:min(len(newest), mostTail)] {
		row := t.addMessage(columns, m)
		at := slices.IndexFunc(row.Cells, func(c cell) bool { return c.Head == "Age" })
		row.Cells[at] = cell{Head: "Inserted", At: m.CreatedAt, Class: "word"}
		took := cell{Head: "Insert to confirm", Class: "word"}
		if m.State == operator.Published {
			took.Text = latency(m.PublishedAt.Sub(m.CreatedAt))
		}
		row.Cells = slices.Insert(row.Cells, at+2, took)
	}
	t.done()
	return t, nil
}

// latency is a time in milliseconds below ten seconds.
func latency(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return show.Duration(d)
}
