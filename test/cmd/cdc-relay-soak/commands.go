package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/test/soak/fault"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

func (p *process) listCommand(c *cli.Context) error {
	if c.Args().Present() {
		return usagef("list: unexpected argument %q", c.Args().First())
	}
	table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	for _, f := range fault.All() {
		fmt.Fprintf(table, "%s\t%s\n", f.Name, f.About)
		if f.Needs != 0 {
			fmt.Fprintf(table, "\t  needs %s\n", f.Needs)
		}
	}
	return table.Flush()
}

// conclusion returns the error that stands for the verdict's exit code.
func conclusion(verdict *history.Verdict) error {
	switch verdict.Result {
	case history.Pass:
		return nil
	case history.Fail:
		return errViolated
	default:
		return notRunError{fmt.Errorf("nothing is proved: %s", verdict.Incomplete)}
	}
}
