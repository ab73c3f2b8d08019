package main

import (
	"errors"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
)

// pageSetting is --after: it continues a list.
func pageSetting() setting {
	return setting{
		Info: settings.Info{
			Name: "after", Placeholder: "CURSOR", FlagOnly: true,
			Usage: "Continue a list: the cursor that the previous page printed.",
		},
		Set: func(c *config, text string) error { c.looking.after = text; return nil },
	}
}

func parkedSetting() setting {
	return settings.FlagOnly(settings.Switch("parked",
		"Only keys whose first row waits for its time, or that a dead letter blocks.",
		func(c *config) *bool { return &c.looking.parked }))
}

// pageFlags are the flags of a command that lists, between its own.
func pageFlags(first []cli.Flag, more ...string) []cli.Flag {
	return append(append(first, asFlags(pageSetting())...), flags(append([]string{"limit"}, more...)...)...)
}

// page returns the requested part of a list.
func (c *config) page() operator.Page {
	return operator.Page{After: c.looking.after, Limit: c.looking.limit}
}

// pageError says that a wrong cursor came from --after.
func (c *config) pageError(err error) error {
	if errors.Is(err, operator.ErrCursor) {
		return usagef("--after: %s", err)
	}
	return err
}

// readFor is how long a list reads on if the filter matches few rows.
const readFor = 5 * time.Second

// readOn reads pages until the list has as many rows as asked for, ends, or has taken readFor.
func readOn[T any](c *config, page func(operator.Page) (operator.Listing[T], error)) (list operator.Listing[T], err error) {
	wanted := c.page()
	for began := time.Now(); ; {
		next, err := page(wanted)
		if err != nil {
			return list, c.pageError(err)
		}
		list.Rows, list.Next = append(list.Rows, next.Rows...), next.Next
		wanted.After, wanted.Limit = next.Next, wanted.Limit-len(next.Rows)
		if wanted.After == "" || wanted.Limit == 0 || time.Since(began) > readFor {
			return list, nil
		}
	}
}

// orNothing returns nil for "".
func orNothing(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
