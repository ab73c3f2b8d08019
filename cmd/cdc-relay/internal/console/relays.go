package console

import (
	"context"
	"fmt"
	"net/http"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// relaysShown is the data of the page of the relays.
type relaysShown struct {
	table
	// Differences are sentences about versions and settings that should be the same.
	Differences []string
	// Sampled: the relays were asked.
	Sampled bool
}

// relaysPage shows what each relay told last.
func (c *Console) relaysPage(context.Context, *operator.Tables, *http.Request) (any, error) {
	v, sampled := c.history.view()
	shown := relaysShown{table: table{Label: "Relays"}, Differences: v.Differences(), Sampled: sampled}
	for _, r := range v.Relays {
		role, level := show.OrElse(show.Printable(r.Role), "running"), "good"
		switch {
		case !r.Works:
			role, level = "silent, was "+role, "bad"
		case !r.Ready:
			role, level = role+", not ready", "bad"
		}
		rate := ""
		if r.Leads() {
			rate = perSecondText(r.PublishedPerSecond)
		}
		shown.add(tableRow{Cells: []cell{
			{Head: "Host", Text: show.OrElse(show.Printable(r.Host), "?"), Class: "word"},
			{Head: "Process", Text: fmt.Sprint(r.PID)},
			{Head: "Role", Text: role, Level: level},
			{Head: "Since", Text: show.Time(r.Since), Class: "word"},
			{Head: "Seen", Text: show.Duration(max(0, v.At.Sub(r.Seen))) + " ago", Class: "word"},
			{Head: "Version", Text: show.Printable(r.Version), Class: "word"},
			{Head: "Shard", Text: show.Printable(r.Settings["shard"])},
			{Head: "Publisher", Text: show.Printable(r.Phase)},
			{Head: "Published", Text: rate},
			{Head: "Problem", Text: show.Printable(r.Detail), Class: "text"},
		}})
	}
	shown.done()
	return shown, nil
}
