package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

func (p *process) explainCommand() *cli.Command {
	return &cli.Command{
		Name:      "explain",
		Usage:     "show where one message is, and what happens to it next",
		UsageText: "cdc-relay explain ID [FLAGS]",
		Description: `Shows where a message is, what it waits for, and what happens next and when. For a dead
letter it shows the reason and the command that requeues it. ID is the row's id, or the
message_id, which has no index and needs a scan of the table. If no message is found, the
exit code is 3: it was delivered and deleted, or never committed.

The relay at --http-addr tells its settings, such as --max-retries.`,
		Flags: asking(describe(flags(
			"show-payload", "format", "http-addr", "database-url", "table", "config",
			"on-dead-letter", "on-expired", "max-retries", "poll-interval", "mode", "slot", "shard",
		), usages{"http-addr": askForState})),
		Action: p.onNamed(p.explain),
	}
}

func (p *process) explain(ctx context.Context, s *session, name operator.Name) error {
	at, err := s.locate(ctx, name, s.cfg.selected.showPayload)
	if err != nil {
		return err
	}
	waiting, dead, published := at.waiting, at.dead, at.published
	around, err := p.surroundings(ctx, s)
	if err != nil {
		return err
	}
	if s.cfg.format == formatJSON {
		err = p.terminal.JSON(around.View(waiting, dead, published))
	} else {
		err = p.showExplained(s.cfg, around, waiting, dead, published)
	}
	if err == nil && len(waiting)+len(dead)+len(published) == 0 {
		return failure.WithHint(
			failure.NotFound(fmt.Errorf(
				"%s is neither in %s nor in %s: it was delivered and deleted, or never committed",
				name, s.cfg.relay.Table, s.cfg.relay.Table.DeadLetter(),
			)),
			"# look for its message_id at the consumer; check that --table and --database-url are right",
		)
	}
	return err
}

// showExplained prints the messages for people.
func (p *process) showExplained(
	cfg *config, s show.Surroundings, waiting []operator.Waiting, dead []operator.DeadMessage,
	published []operator.PublishedMessage,
) error {
	for i, w := range waiting {
		if i > 0 {
			fmt.Fprintln(p.terminal.Out)
		}
		g := p.terminal.Table()
		s.Details(g, w)
		if err := g.Write(); err != nil {
			return err
		}
	}
	for i, letter := range dead {
		if err := p.showDeadLetter(cfg, letter, i+len(waiting) > 0); err != nil {
			return err
		}
	}
	for i, m := range published {
		if err := p.showPublished(cfg, m, i+len(waiting)+len(dead) > 0); err != nil {
			return err
		}
	}
	return nil
}

// surroundings reads the facts outside the rows that decide when messages are published.
func (p *process) surroundings(ctx context.Context, s *session) (show.Surroundings, error) {
	return show.SurroundingsOf(ctx, s.Tables, p.source(s.cfg))
}
