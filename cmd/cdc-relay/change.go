package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// changeFlags are the flags of a command that changes the selected rows, after its own.
func changeFlags(own []cli.Flag) []cli.Flag {
	common := flags("dry-run", "yes", "format", "database-url", "table", "config")
	return describe(append(own, common...), usages{"yes": doNotAsk})
}

// change is a command that changes many rows. It asks before, unless --yes is given, and may fail halfway.
type change struct {
	process *process
	cfg     *config
	// doing describes the progress bar.
	doing string
	// what names a selected row in the error of a filter that matches nothing; "": that is a normal result.
	what string
	// question is asked about the number of rows; notDone is what the error says after another answer than yes.
	question func(total int64) string
	notDone  string
	// harmless: the command sends messages that have not arrived. It asks only on a terminal, and not for named
	// messages.
	harmless bool
	// again is the hint of a command that was stopped; "": againForOthers.
	again string

	// matched counts the selected rows.
	matched int64
	// refused is the error of agree.
	refused  error
	clearBar func()
}

// begin returns what the change of the rows needs. end follows it.
func (c *change) begin(ctx context.Context) (operator.Agreed, operator.Progress) {
	bar, clearBar := c.process.terminal.Progress(c.doing, operator.ChangeBatch)
	c.clearBar = clearBar
	return c.agree(ctx), bar
}

// agree returns an operator.Agreed. The question goes to the standard error: a script may read the standard output.
func (c *change) agree(ctx context.Context) operator.Agreed {
	return func(total int64) error {
		c.matched = total
		f := c.cfg.selected.filter
		if total == 0 || c.cfg.selected.dryRun ||
			c.harmless && (!show.IsTerminal(c.process.terminal.In) || len(f.IDs)+len(f.MessageIDs) > 0) {
			return nil
		}
		if !c.cfg.yes {
			tty := c.process.terminal
			c.refused = tty.Confirm(ctx, tty.Err, c.question(total), c.notDone)
		}
		return c.refused
	}
}

// errStopped is returned if a signal interrupts a change of many rows. Finished batches stay changed.
var errStopped = errors.New("stopped")

const againForOthers = "run it again for the others"

// end prints what was done, and returns why the rest was not. told is the field of the view for the error.
func (c *change) end(ctx context.Context, view any, told *string, text string, done int64, failed error) error {
	if c.clearBar != nil {
		c.clearBar()
	}
	if c.refused != nil {
		return c.refused
	}
	if failed == nil && c.matched == 0 && c.what != "" {
		failed = c.process.none(c.cfg, c.what)
	}
	if failed != nil && ctx.Err() != nil {
		stopped := fmt.Errorf("%w, with %s left", errStopped, show.Plural(c.matched-done, "row"))
		failed = failure.WithHint(stopped, cmp.Or(c.again, againForOthers))
		if done == 0 {
			failed = fmt.Errorf("%w before anything was changed", errStopped)
		}
	}
	if failed != nil {
		*told = show.OneLine(failed.Error())
		if done == 0 {
			text = ""
		}
	}
	if err := c.process.printResult(c.cfg, view, text); err != nil {
		return err
	}
	return failed
}

// printResult prints the outcome in one line, or as JSON.
func (p *process) printResult(cfg *config, view any, text string) error {
	switch {
	case cfg.format == formatJSON:
		return p.terminal.JSON(view)
	case text == "":
		return nil
	}
	_, err := fmt.Fprintln(p.terminal.Out, text)
	return err
}
