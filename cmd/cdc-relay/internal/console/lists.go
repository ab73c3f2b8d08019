package console

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// listed is the data of a page with a list.
type listed struct {
	picked
	table
	// Groups are the rows of the whole list by cause, or those of one cause by routing key; nil: the page shows another
	// part of the list.
	Groups []shownGroup
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
const mostGroups = 20

// group adds groups to the page, whose list is at path with these filters.
func (l *listed) group(
	c *Console, groups operator.Groups, path string, filters url.Values, changes ...operator.Verb,
) {
	l.Some = groups.N.Precision != operator.Exact
	for _, g := range groups.All {
		number := show.Number(g.N)
		if l.Some {
			number = "these"
		}
		shown := shownGroup{Group: g, Path: path, Changes: c.choices(number, changes...)}
		var exchange *string
		if g.Exchange != "" {
			exchange = &g.Exchange
		}
		_, shown.Fix = show.FailureOf(&g.Example, exchange, g.Reason)
		link := maps.Clone(filters)
		for _, f := range shown.Fields() {
			link.Set(f.Name, f.Value)
		}
		shown.Link = path + "?" + link.Encode()
		l.Groups = append(l.Groups, shown)
	}
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

// list begins a page with a list: with the filters that every list has and these, and the values that they offer.
func (c *Console) list(
	ctx context.Context, r *http.Request, label string, offer func(context.Context) (operator.Offered, error),
	filters ...string,
) (listed, error) {
	all := append(filters, "routing-key", "header", "exchange", "ordering-key", "older-than", "newer-than")
	p, err := c.pick(r, all, "after")
	if err == nil {
		if offered, failed := offer(ctx); failed == nil {
			p.offer(offered)
		}
	}
	return listed{picked: p, table: table{Label: label}}, err
}

func (c *Console) waitingPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	shown, err := c.list(ctx, r, "Waiting messages", tables.OfferWaiting, "reason", "state")
	v, sampled := c.history.view()
	if sampled {
		shown.offerStates(v)
	}
	if err != nil || shown.mistaken() {
		return shown, err
	}
	shown.filter.Block = show.DeadLettersBlock(c.relay())
	p := &shown.picked
	list, err := tables.List(ctx, p.filter, p.part)
	shown.goOn(list.Next)
	if v.Count("not_deleted").N > 0 {
		if around, failed := show.SurroundingsOf(ctx, tables, c.cfg.Source); failed == nil {
			list.Rows = around.Known(list.Rows)
		}
	}
	behind := map[outbox.UUID]bool{}
	if sampled && keysBlocked(v) && err == nil {
		behind, err = blockedAmong(ctx, tables, list.Rows, p.filter.Block)
	}
	if retries(r) {
		shown.change(c, operator.Retry)
	}
	for _, m := range list.Rows {
		next, state := show.NextTime(m), m.State
		if behind[m.MessageID] {
			state = operator.Blocked
		}
		shown.addMessage(m.StoredMessage, []cell{
			{Head: "Age", Text: show.Duration(m.Age()), Class: "word"},
			stateCell(show.StateText(state), string(state)),
			{Head: "Next", Text: strings.TrimPrefix(next, "-"), Class: "word"},
		}, c.addressCells(m.StoredMessage), failureCells(m.StoredMessage))
		if m.AvailableAt == nil || m.Attempts == 0 { // it cannot be sent again
			shown.Rows[len(shown.Rows)-1].ID = ""
		}
	}
	shown.done()
	by := causes(p.filter.In(""))
	if err == nil && p.part.After == "" && p.filter.State == operator.Retrying && by != nil {
		groups, failed := tables.RetryGroups(ctx, *by)
		if err = failed; err == nil && (by.Keys == nil || len(groups.All) > 1) {
			shown.group(c, groups, "/waiting", url.Values{"state": {"retrying"}}, operator.Retry)
		}
	}
	return shown, err
}

// blockedAmong tells which rows are blocked: only a filter knows, because it depends on other rows.
func blockedAmong(
	ctx context.Context, tables *operator.Tables, rows []operator.Message, block bool,
) (map[outbox.UUID]bool, error) {
	blocked, filter := map[outbox.UUID]bool{}, operator.Filter{State: operator.Blocked, Block: block}
	for _, m := range rows {
		if m.OrderingKey != nil {
			filter.IDs = append(filter.IDs, m.ID)
		}
	}
	if len(filter.IDs) == 0 {
		return blocked, nil
	}
	list, err := tables.List(ctx, filter, operator.Page{Limit: len(rows)})
	for _, m := range list.Rows {
		blocked[m.MessageID] = true
	}
	return blocked, err
}

func (c *Console) deadPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	shown, err := c.list(ctx, r, "Dead letters", tables.OfferDead, "reason")
	if err != nil || shown.mistaken() {
		return shown, err
	}
	p := &shown.picked
	list, err := tables.List(ctx, p.filter.In(operator.Dead), p.part)
	shown.goOn(list.Next)
	shown.change(c, operator.Requeue, operator.Purge)
	for _, m := range list.Rows {
		shown.addMessage(m.StoredMessage, []cell{
			{Head: "Dead for", Text: show.Duration(m.ReadAt.Sub(m.DeadAt)), Class: "word"},
			{Head: "Reason", Text: show.Reason(m), Class: "word"},
		}, c.addressCells(m.StoredMessage), failureCells(m.StoredMessage))
	}
	shown.done()
	if by := causes(p.filter); err == nil && p.part.After == "" && by != nil {
		groups, failed := tables.DeadGroups(ctx, *by)
		if err = failed; err == nil && (by.Keys == nil || len(groups.All) > 1) {
			shown.group(c, groups, "/dead-letters", url.Values{}, operator.Requeue, operator.Purge)
		}
	}
	return shown, err
}

func (c *Console) publishedPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	shown, err := c.list(ctx, r, "Published messages", tables.OfferPublished)
	if err != nil || shown.mistaken() {
		return shown, err
	}
	list, err := tables.List(ctx, shown.filter.In(operator.Published), shown.part)
	shown.goOn(list.Next)
	shown.change(c, operator.Replay)
	for _, m := range list.Rows {
		at := show.Time(m.PublishedAt) + ", " + show.Duration(m.ReadAt.Sub(m.PublishedAt)) + " ago"
		shown.addMessage(m.StoredMessage, []cell{
			{Head: "Published", Text: at, Class: "word"},
			{Head: "Message ID", Text: m.MessageID.String(), Class: "word code"},
		}, c.addressCells(m.StoredMessage))
	}
	shown.done()
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
	var list operator.Listing[operator.Key]
	if blocked {
		list, err = tables.BlockedKeys(ctx, show.DeadLettersBlock(around.Config), p.part)
	} else {
		list, err = tables.Keys(ctx, p.part)
	}
	p.goOn(list.Next)
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
		shown.add(tableRow{Cells: []cell{
			{
				Head: "Ordering key", Text: inQuotes(key.Key), Class: "key",
				Link: "/waiting?" + url.Values{"ordering-key": {key.Key}}.Encode(),
			},
			{Head: "Rows behind", Text: show.Count(key.Behind)},
			{Head: "First row", Text: fmt.Sprint(key.First.ID), Link: fmt.Sprintf("/message?id=%d", key.First.ID)},
			stateCell(show.StateText(key.First.State), string(key.First.State)),
			{Head: "Why it waits", Text: around.Why(key), Class: "why"},
		}})
	}
	shown.done()
	return shown, err
}
