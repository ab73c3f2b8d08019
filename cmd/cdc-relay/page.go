package main

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/store"
)

// pageSetting continues a list.
func pageSetting() *setting {
	return &setting{
		name: "after", value: "CURSOR", flagOnly: true,
		usage: "Continue a list: the cursor that the page before has printed.",
		set:   func(c *config, text string) error { c.looking.after = text; return nil },
	}
}

func parkedSetting() *setting {
	s := switchSetting("parked", "Only keys whose first row waits for its time, or that a dead letter blocks.",
		func(c *config) *bool { return &c.looking.parked })
	s.flagOnly = true
	return s
}

// pageFlags are those of a command that lists, before its others.
func pageFlags(first []cli.Flag, more ...string) []cli.Flag {
	return append(append(first, pageSetting()), flags(append([]string{"limit"}, more...)...)...)
}

// page is the part of a list that is asked for.
func (c *config) page() store.Page { return store.Page{After: c.looking.after, Limit: c.looking.limit} }

// pageError says which flag a wrong cursor came from.
func (c *config) pageError(err error) error {
	if errors.Is(err, store.ErrCursor) {
		return usagef("--after: %s", err)
	}
	return err
}

// tellNext tells how a list goes on, if it does.
func (p *process) tellNext(shown int, next string) {
	switch {
	case next == "":
	case shown == 0:
		fmt.Fprintf(p.stdout, "none among the first %s; look further: --after %s\n", rowsText(store.MostLooked, "row"), next)
	default:
		fmt.Fprintf(p.stdout, "… more: --after %s\n", next)
	}
}

// orNothing is nil for "".
func orNothing(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
