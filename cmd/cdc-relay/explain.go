package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

func (p *process) explainCommand() *cli.Command {
	return &cli.Command{
		Name:      "explain",
		Usage:     "show where one message is, and what happens to it next",
		UsageText: "cdc-relay explain ID [FLAGS]",
		Description: `Shows a message of the outbox, a dead letter or a published message: where it is, what it
waits for, and what happens next and when. For a dead letter it shows the reason and the
command that sends it again. ID is the row's id, the message_id, or the id of a Celery task,
also while it waits for a retry. If no message is found, the exit code is 3.`,
		Flags: asking(flags(
			"payload", "json", "database-url", "table", "config",
			"on-dead-letter", "on-expired", "max-retries", "poll-interval", "mode", "slot", "shard",
		)),
		Action: p.onNamed(p.explain),
	}
}

func (p *process) explain(ctx context.Context, s *session, name operator.Name) error {
	around, err := show.SurroundingsOf(ctx, s.Tables, p.source(s.cfg))
	if err != nil {
		return err
	}
	found, err := s.Find(ctx, name, around.Known(), s.cfg.selected.payload)
	if err != nil {
		return err
	}
	found = around.Told(found)
	if s.cfg.json {
		err = p.terminal.JSON(around.View(found))
	}
	for i, m := range found {
		if err != nil || s.cfg.json {
			break
		}
		if i > 0 {
			fmt.Fprintln(p.terminal.Out)
		}
		g := p.terminal.Table()
		around.Details(g, m)
		err = g.Write()
	}
	if err != nil {
		return err
	}
	return s.missing(ctx, located{name, found})
}
