package console

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// searched is the data of the page with the messages of a key.
type searched struct {
	// Text is what the user typed.
	Text string
	Hits []hits
}

// hits are some messages with the key. Link leads to all of them.
type hits struct {
	table
	Link string
}

// mostHits is how many messages of a list the page shows.
const mostHits = 5

// search answers the search form, which every page has. An id leads to the page of its message.
func (c *Console) search(w http.ResponseWriter, r *http.Request) {
	text := strings.TrimSpace(r.FormValue("q"))
	if _, err := operator.ParseName(text); err == nil {
		http.Redirect(w, r, "/message?"+url.Values{"id": {text}}.Encode(), http.StatusSeeOther)
		return
	}
	c.show(w, r, page{path: "/search", title: "Search", template: "search", view: c.searchPage})
}

// searchPage shows messages whose routing key or ordering key is the text. In quotes, it may also look like an id.
func (c *Console) searchPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	shown := searched{Text: strings.TrimSpace(r.FormValue("q"))}
	if err := onlyParameters(r, "q"); err != nil || shown.Text == "" {
		return shown, err
	}
	around, err := show.SurroundingsOf(ctx, tables, c.cfg.Source)
	if err != nil {
		return nil, err
	}
	kept, err := tables.HasHistory(ctx)
	if err != nil {
		return nil, err
	}
	key := withoutQuotes(shown.Text)
	for _, list := range []struct {
		state       operator.State
		path, label string
	}{
		{"", "/waiting", "Waiting"},
		{operator.Dead, "/dead-letters", "Dead letters"},
		{operator.Published, "/published", "Published"},
	} {
		if list.state == operator.Published && !kept {
			break
		}
		for _, name := range []string{"ordering-key", "routing-key"} {
			f := operator.Filter{State: list.state, Known: around.Known()}
			if err := c.cfg.SetFilter(&f, name, key); err != nil {
				return nil, mistakef("%s: %s", shown.Text, err)
			}
			found, err := tables.List(ctx, f, operator.Page{Limit: mostHits})
			if err != nil {
				return nil, err
			}
			hit := hits{
				table: table{Label: list.label + " with this " + strings.ReplaceAll(name, "-", " ")},
				Link:  list.path + "?" + url.Values{name: {key}}.Encode(),
			}
			for _, m := range around.Told(found.Rows) {
				hit.addMessage(show.MessageColumns(list.state, c.relay().MetricsHeader), m)
			}
			if hit.done(); len(hit.Rows) > 0 {
				shown.Hits = append(shown.Hits, hit)
			}
		}
	}
	return shown, nil
}
