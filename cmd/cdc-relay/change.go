package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// consent asks before a command changes rows, unless --yes is given.
type consent struct {
	process *process
	cfg     *config
	// question is asked about the number of rows; notDone is what the error says after another answer than yes.
	question func(total int64) string
	notDone  string
	// harmless: the command sends messages that have not arrived. It asks only on a terminal, and not for named
	// messages.
	harmless bool

	matched int64
	// refused is the error of agree.
	refused error
}

// agree returns an operator.Agreed. The question goes to the standard error: a script may read the standard output.
func (c *consent) agree(ctx context.Context) operator.Agreed {
	return func(total int64) error {
		c.matched = total
		f := c.cfg.selected.filter
		if total == 0 || c.harmless && (!show.IsTerminal(c.process.terminal.In) || len(f.IDs)+len(f.MessageIDs) > 0) {
			return nil
		}
		if !c.cfg.yes {
			tty := c.process.terminal
			c.refused = tty.Confirm(ctx, tty.Err, c.question(total), c.notDone)
		}
		return c.refused
	}
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

// errStopped is returned if a signal interrupts a change of many rows. Finished batches stay changed.
var errStopped = errors.New("stopped")

const againForOthers = "run it again for the others"

// change is the outcome of a command that changes many rows. It may have failed halfway.
type change struct {
	view   any
	told   *string // the field of the view for the error
	text   string
	done   int64
	left   int64
	failed error
	// again is the hint of a command that was stopped.
	again string
}

// printChange prints what was done, and then what was not done.
func (p *process) printChange(ctx context.Context, cfg *config, ch change) error {
	if ch.failed != nil && ctx.Err() != nil {
		ch.failed = failure.WithHint(fmt.Errorf("%w, with %s left", errStopped, show.Plural(ch.left, "row")), ch.again)
		if ch.done == 0 {
			ch.failed = fmt.Errorf("%w before anything was changed", errStopped)
		}
	}
	if ch.failed != nil {
		*ch.told = show.OneLine(ch.failed.Error())
		if ch.done == 0 {
			ch.text = ""
		}
	}
	if err := p.printResult(cfg, ch.view, ch.text); err != nil {
		return err
	}
	return ch.failed
}
