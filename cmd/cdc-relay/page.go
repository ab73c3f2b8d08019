package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// listing is what a command lists: pages of rows of one kind.
type listing[T any] struct {
	// what names the rows, in the plural.
	what string
	read func(operator.Page) (operator.Listing[T], error)
	// none returns the error of a list without rows; nil: it is a normal result.
	none func() error
	// key is that of the rows in the JSON output, and view the form of a row.
	key     string
	view    func(row T) any
	columns []show.Column[T]
}

// show prints a page as a table, or as JSON.
func (l listing[T]) show(p *process, cfg *config) error {
	list, err := l.readOn(cfg)
	if err != nil {
		return err
	}
	empty := len(list.Rows) == 0 && list.Next == ""
	if len(list.Rows) == 0 {
		p.noteWildcards(cfg)
	}
	if empty && l.none != nil {
		if err := l.none(); err != nil {
			return err
		}
	}
	switch {
	case cfg.json:
		next := &list.Next // the cursor for --after; null on the last page
		if list.Next == "" {
			next = nil
		}
		return p.terminal.JSON(map[string]any{l.key: each(list.Rows, l.view), "next": next})
	case empty:
		fmt.Fprintln(p.terminal.Out, "no "+l.what)
		return nil
	}
	if err := writeTable(p, l.columns, list.Rows); err != nil {
		return err
	}
	p.terminal.NextPage(len(list.Rows), list.Next, readFor)
	return nil
}

// writeTable prints rows in columns.
func writeTable[T any](p *process, columns []show.Column[T], rows []T) error {
	g := p.terminal.Table(each(columns, func(c show.Column[T]) string { return strings.ToUpper(c.Name) })...).Fit()
	for _, row := range rows {
		g.Row(each(columns, func(c show.Column[T]) string { return c.Cell(row) })...)
	}
	return g.Write()
}

// readFor is how long a list reads on if the filter matches few rows.
const readFor = 5 * time.Second

// readOn reads pages until the list has as many rows as asked for, ends, or has taken readFor.
func (l listing[T]) readOn(c *config) (list operator.Listing[T], err error) {
	wanted := operator.Page{After: c.selected.after, Limit: c.selected.limit, Payload: c.selected.payload}
	for began := time.Now(); ; {
		next, err := l.read(wanted)
		if errors.Is(err, operator.ErrCursor) {
			return list, usagef("--after: %s", err)
		}
		if err != nil {
			return list, err
		}
		list.Rows, list.Next = append(list.Rows, next.Rows...), next.Next
		wanted.After, wanted.Limit = next.Next, wanted.Limit-len(next.Rows)
		if wanted.After == "" || wanted.Limit == 0 || time.Since(began) > readFor {
			return list, nil
		}
	}
}

// each returns the views of rows. It is not nil, so that JSON shows [] if there are none.
func each[T, V any](rows []T, view func(T) V) []V {
	views := make([]V, 0, len(rows))
	for _, row := range rows {
		views = append(views, view(row))
	}
	return views
}

// pageFlags are the flags of a command that lists, between its own.
func pageFlags(first []cli.Flag, more ...string) []cli.Flag {
	return append(append(first, asFlags(pageSetting())...), flags(append([]string{"limit"}, more...)...)...)
}

// pageSetting is --after: it continues a list.
func pageSetting() setting {
	return settings.FlagOnly(settings.Text("after", "CURSOR", "",
		"Continue a list: the cursor that the previous page printed.",
		func(c *config) *string { return &c.selected.after }))
}
