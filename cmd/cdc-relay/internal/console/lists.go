package console

import (
	"context"
	"net/http"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/relay"
)

// listed is the data of a page with a list.
type listed[T any] struct {
	picked
	Rows []T
}

// changes returns these changes if the console allows any.
func (c *Console) changes(names ...string) []string {
	if !c.cfg.AllowChanges {
		return nil
	}
	return names
}

func (c *Console) waitingPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	filters := []string{
		"state", "routing-key", "header", "exchange", "ordering-key", "older-than", "newer-than", "reason",
	}
	p, err := c.pick(r, filters, "after")
	if err != nil {
		return nil, err
	}
	list, err := tables.List(ctx, p.filter, p.part)
	p.goOn(list.Next)
	if retries(r) {
		p.Changes = c.changes("retry")
	}
	return listed[operator.Waiting]{p, list.Rows}, err
}

func (c *Console) deadPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	filters := []string{"routing-key", "header", "exchange", "ordering-key", "reason", "older-than", "newer-than"}
	p, err := c.pick(r, filters, "after")
	if err != nil {
		return nil, err
	}
	list, err := tables.DeadLetters(ctx, p.filter, p.part)
	p.goOn(list.Next)
	p.Changes = c.changes("requeue", "purge")
	return listed[operator.DeadMessage]{p, list.Rows}, err
}

func (c *Console) publishedPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	filters := []string{"routing-key", "header", "exchange", "ordering-key", "older-than", "newer-than"}
	p, err := c.pick(r, filters, "after")
	if err != nil {
		return nil, err
	}
	list, err := tables.PublishedMessages(ctx, p.filter, p.part)
	p.goOn(list.Next)
	return listed[operator.PublishedMessage]{p, list.Rows}, err
}

// shownKey is a key and the reason why it waits.
type shownKey struct {
	operator.Key
	Why string
}

type keysShown struct {
	listed[shownKey]
	Parked bool
}

func (c *Console) keysPage(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error) {
	p, err := c.pick(r, nil, "parked", "after")
	if err != nil {
		return nil, err
	}
	parked := r.FormValue("parked") != ""
	if parked {
		p.Query = "parked=1"
	}
	around, err := show.SurroundingsOf(ctx, tables, c.cfg.Relay, c.cfg.RelayAddr)
	if err != nil {
		return nil, err
	}
	var list operator.Listing[operator.Key]
	if parked {
		list, err = tables.ParkedKeys(ctx, c.cfg.Relay.OnDeadLetter == relay.OnDeadLetterBlock, p.part)
	} else {
		list, err = tables.Keys(ctx, p.part)
	}
	p.goOn(list.Next)
	shown := keysShown{listed[shownKey]{picked: p}, parked}
	for _, key := range list.Rows {
		shown.Rows = append(shown.Rows, shownKey{key, around.Why(key)})
	}
	return shown, err
}
