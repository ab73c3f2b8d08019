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
type listed[T any] struct {
	picked
	Rows []T
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
	Changes    []choice
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
func (l *listed[T]) group(
	c *Console, groups operator.Groups, path string, filters url.Values, changes ...operator.Verb,
) {
	l.Some = groups.N.Precision != operator.Exact
	for _, g := range groups.All {
		number := show.Number(g.N)
		if l.Some {
			number = "these"
		}
		shown := shownGroup{g, path, "", c.choices(number, changes...)}
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

func (c *Console) waitingPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	filters := []string{
		"state", "routing-key", "header", "exchange", "ordering-key", "older-than", "newer-than", "reason",
	}
	p, err := c.pick(r, filters, "after")
	if err != nil {
		return nil, err
	}
	if offered, failed := tables.OfferWaiting(ctx); failed == nil {
		p.offer(offered)
	}
	shown := listed[operator.Message]{picked: p}
	if p.mistaken() {
		return shown, nil
	}
	p.filter.Block = show.DeadLettersBlock(c.relay())
	list, err := tables.List(ctx, p.filter, p.part)
	shown.Rows = list.Rows
	shown.goOn(list.Next)
	if retries(r) {
		shown.Changes = c.choices("these", operator.Retry)
	}
	by := causes(p.filter.In(""))
	if err == nil && p.part.After == "" && p.filter.State == operator.Retrying && by != nil {
		groups, failed := tables.RetryGroups(ctx, *by)
		if err = failed; err == nil && (by.Keys == nil || len(groups.All) > 1) {
			shown.group(c, groups, "/waiting", url.Values{"state": {"retrying"}}, operator.Retry)
		}
	}
	return shown, err
}

func (c *Console) deadPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	filters := []string{"routing-key", "header", "exchange", "ordering-key", "reason", "older-than", "newer-than"}
	p, err := c.pick(r, filters, "after")
	if err != nil {
		return nil, err
	}
	if offered, failed := tables.OfferDead(ctx); failed == nil {
		p.offer(offered)
	}
	shown := listed[operator.Message]{picked: p}
	if p.mistaken() {
		return shown, nil
	}
	list, err := tables.List(ctx, p.filter.In(operator.Dead), p.part)
	shown.Rows = list.Rows
	shown.goOn(list.Next)
	shown.Changes = c.choices("these", operator.Requeue, operator.Purge)
	if by := causes(p.filter); err == nil && p.part.After == "" && by != nil {
		groups, failed := tables.DeadGroups(ctx, *by)
		if err = failed; err == nil && (by.Keys == nil || len(groups.All) > 1) {
			shown.group(c, groups, "/dead-letters", url.Values{}, operator.Requeue, operator.Purge)
		}
	}
	return shown, err
}

func (c *Console) publishedPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	filters := []string{"routing-key", "header", "exchange", "ordering-key", "older-than", "newer-than"}
	p, err := c.pick(r, filters, "after")
	if err != nil {
		return nil, err
	}
	shown := listed[operator.Message]{picked: p}
	if p.mistaken() {
		return shown, nil
	}
	list, err := tables.List(ctx, p.filter.In(operator.Published), p.part)
	shown.Rows = list.Rows
	shown.goOn(list.Next)
	if offered, failed := tables.OfferPublished(ctx); failed == nil {
		shown.offer(offered)
	}
	shown.Changes = c.choices("these", operator.Replay)
	return shown, err
}

// shownKey is a key and the reason why it waits.
type shownKey struct {
	operator.Key
	Why string
}

type keysShown struct {
	listed[shownKey]
	Blocked bool
}

func (c *Console) keysPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	p, err := c.pick(r, nil, "blocked", "after")
	if err != nil {
		return nil, err
	}
	blocked := r.FormValue("blocked") != ""
	if blocked {
		p.Query = "blocked=1"
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
	shown := keysShown{listed[shownKey]{picked: p}, blocked}
	for _, key := range list.Rows {
		shown.Rows = append(shown.Rows, shownKey{key, around.Why(key)})
	}
	return shown, err
}
