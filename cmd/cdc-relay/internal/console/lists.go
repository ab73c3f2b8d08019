package console

import (
	"context"
	"maps"
	"net/http"
	"net/url"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// listed is the data of a page with a list.
type listed struct {
	picked
	table
	// Groups are the rows of the whole list by cause, or those of one cause by routing key; nil: the page shows another
	// part of the list. Heading counts them and their rows, and More those that are not shown.
	Groups        []shownGroup
	Heading, More string
	// Some: the groups do not count all rows.
	Some bool
}

// shownGroup is a group with a link to its rows, and the changes of them.
type shownGroup struct {
	operator.Group
	// Path is the page with the rows, Link its URL.
	Path, Link string
	// Fix is what to do first; "": unknown.
	Fix     string
	Changes []choice
}

// Fields are the filters that select the rows of the group.
func (g shownGroup) Fields() []field {
	all := []field{
		{Name: "reason", Value: g.Reason, Set: true}, {Name: "exchange", Value: g.Exchange, Set: true},
	}
	if g.RoutingKey != nil {
		all = append(all, field{Name: "routing-key", Value: operator.EscapePattern(*g.RoutingKey), Set: true})
	}
	return all
}

// mostGroups is how many groups a page shows.
const mostGroups = 10

// byCause adds the groups of the list to its first page, which is at path with these filters.
func (l *listed) byCause(
	ctx context.Context, c *Console, tables *operator.Tables, path string, filters url.Values, resend operator.Verb,
) error {
	by := causes(l.filter.In(""))
	if by == nil || l.part.After != "" {
		return nil
	}
	groups, err := tables.Groups(ctx, l.filter.State, *by)
	if err != nil || by.Keys != nil && len(groups.All) < 2 {
		return err
	}
	l.Some = groups.N.Precision != operator.Exact
	one := "cause"
	if by.Keys != nil {
		one = "routing key"
	}
	l.Heading = show.Plural(groups.Causes, one) + ", " + wordsOf(resend).rows(groups.N.N)
	rest := groups.N.N
	for _, g := range groups.All {
		rest -= g.N
		number := show.Number(g.N)
		if l.Some {
			number = "these"
		}
		shown := shownGroup{Group: g, Path: path, Changes: c.choices(number, resend)}
		_, shown.Fix = show.GroupFailure(g)
		link := maps.Clone(filters)
		for _, f := range shown.Fields() {
			link.Set(f.Name, f.Value)
		}
		shown.Link = path + "?" + link.Encode()
		l.Groups = append(l.Groups, shown)
	}
	if more := groups.Causes - int64(len(groups.All)); more > 0 {
		l.More = "and " + show.Number(more) + " more, with " + wordsOf(resend).rows(rest)
	}
	return nil
}

// causes says how to group a list: by cause, or that of one cause by routing key. It is nil for any other part.
func causes(f operator.Filter) *operator.GroupOptions {
	o := operator.GroupOptions{Most: mostGroups}
	if f.Reason != nil && f.Exchange != nil {
		o.Keys = &operator.Cause{Reason: *f.Reason, Exchange: *f.Exchange}
		f.Reason, f.Exchange = nil, nil
	}
	if !f.Everything() {
		return nil
	}
	return &o
}

// list is a page with the messages of a state, or of the outbox: those that the filters of the request select, and the
// values that the filters offer.
func (c *Console) list(
	ctx context.Context, tables *operator.Tables, r *http.Request, label string, state operator.State,
	filters ...string,
) (listed, operator.Listing[operator.Message], error) {
	all := append(filters, "routing-key", "header", "exchange", "ordering-key", "older-than", "newer-than")
	p, err := c.pick(r, all, "after")
	shown, list := listed{picked: p, table: table{Label: label}}, operator.Listing[operator.Message]{}
	if err != nil {
		return shown, list, err
	}
	if offered, failed := tables.Offer(ctx, state); failed == nil {
		shown.offer(offered)
	}
	if shown.mistaken() {
		return shown, list, nil
	}
	around, err := show.SurroundingsOf(ctx, tables, c.cfg.Source)
	if err != nil {
		return shown, list, err
	}
	if state != "" {
		shown.filter.State = state
	}
	if shown.filter, err = around.Filter(shown.filter); err == nil {
		list, err = tables.List(ctx, shown.filter, shown.part)
	}
	shown.goOn(list.Next)
	columns := show.MessageColumns(state, c.relay().MetricsHeader)
	for _, m := range around.Told(list.Rows) {
		shown.addMessage(columns, m)
	}
	shown.done()
	return shown, list, err
}

func (c *Console) waitingPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	shown, list, err := c.list(ctx, tables, r, "Waiting messages", "", "reason", "state")
	shown.none = "No message waits. To publish one, insert a row into " + c.relay().Table.String() + "."
	if v, sampled := c.history.view(); sampled {
		shown.offerStates(v)
	}
	if err != nil || shown.mistaken() {
		return shown, err
	}
	if retries(r) {
		shown.change(c, operator.Retry)
	}
	for i, m := range list.Rows {
		if m.AvailableAt == nil || m.Attempts == 0 { // it cannot be sent again
			shown.Rows[i].ID = ""
		}
	}
	if shown.filter.State == operator.Retrying {
		err = shown.byCause(ctx, c, tables, "/waiting", url.Values{"state": {"retrying"}}, operator.Retry)
	}
	return shown, err
}

func (c *Console) deadPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	shown, _, err := c.list(ctx, tables, r, "Dead letters", operator.Dead, "reason")
	shown.none = "There are no dead letters, and nothing is to do."
	if err != nil || shown.mistaken() {
		return shown, err
	}
	shown.change(c, operator.Requeue, operator.Purge)
	return shown, shown.byCause(ctx, c, tables, "/dead-letters", url.Values{}, operator.Requeue)
}

func (c *Console) publishedPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	shown, _, err := c.list(ctx, tables, r, "Published messages", operator.Published)
	shown.none = "No published message is kept. To keep them for an hour: cdc-relay run --keep-published 1h"
	if err == nil && !shown.mistaken() {
		shown.change(c, operator.Replay)
	}
	return shown, err
}

// change offers these changes of the selected rows, and of those among them that are ticked.
func (l *listed) change(c *Console, verbs ...operator.Verb) {
	l.Changes = c.choices("these", verbs...)
	l.Ticks = len(l.Changes) > 0
}

type keysShown struct {
	listed
	Blocked bool
	// Behind is how many messages wait behind another one of their key, though no key is blocked.
	Behind string
}

func (c *Console) keysPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	p, err := c.pick(r, nil, "blocked", "after")
	if err != nil {
		return nil, err
	}
	blocked := r.FormValue("blocked") != ""
	if blocked {
		p.query.Set("blocked", "1")
	}
	around, err := show.SurroundingsOf(ctx, tables, c.cfg.Source)
	if err != nil {
		return nil, err
	}
	list, err := tables.Keys(ctx, blocked, around.Known(), p.part)
	p.goOn(list.Next)
	p.none = "No message with an ordering key waits."
	if blocked {
		p.none = "No key is blocked."
	}
	p.States = []chip{
		{Text: "All keys", Link: "/keys", Here: !blocked},
		{Text: "Blocked keys", Link: "/keys?blocked=1", Here: blocked},
	}
	shown := keysShown{listed: listed{picked: p, table: table{Label: "Ordering keys"}}, Blocked: blocked}
	v, _ := c.history.view()
	if n := v.Count("blocked"); blocked && n.N > 0 && len(list.Rows) == 0 {
		shown.Behind = show.Count(n)
	}
	for _, key := range list.Rows {
		row := tableRow{}
		for _, column := range around.KeyColumns() {
			c := cellOf(column, key)
			switch c.Head {
			case "Ordering key":
				c.Text = inQuotes(c.Text)
				c.Link = "/waiting?" + url.Values{"ordering-key": {key.Key}}.Encode()
			case "First":
				c.Link = messageLinkTo(key.First.ID)
			case "State":
				c.Level = string(key.First.State)
			}
			row.Cells = append(row.Cells, c)
		}
		shown.add(row)
	}
	shown.done()
	return shown, err
}
