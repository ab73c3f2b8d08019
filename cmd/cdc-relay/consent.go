package main

import (
	"context"

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
		f := c.cfg.looking.filter
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
