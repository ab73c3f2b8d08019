package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

func (p *process) deadLetterCommand() *cli.Command {
	return &cli.Command{
		Name:      "dead-letter",
		Usage:     "list, show, requeue or delete dead letters",
		UsageText: "cdc-relay dead-letter list|show|requeue|purge [ID…] [FLAGS]",
		Description: `A message that RabbitMQ rejects too often, or that can never be published, moves to the
dead-letter table (public.outbox_dead_letter) with the reason. Fix the cause, and requeue it.
ID is the row's id, or the message_id.`,
		Subcommands: []*cli.Command{
			{
				Name:      "list",
				Usage:     "list dead letters, newest first",
				UsageText: "cdc-relay dead-letter list [FLAGS]",
				Description: `Lists all dead letters, or those that match the filters.

EXAMPLES

  cdc-relay dead-letter list
  cdc-relay dead-letter list --reason unroutable --newer-than 24h
  cdc-relay dead-letter list --format json | jq -r '.dead_letters[].message_id'`,
				Flags:  pageFlags(filterFlags(false), "format", "database-url", "table", "config"),
				Action: p.deadLetterList,
			},
			{
				Name:      "show",
				Usage:     "show one dead letter",
				UsageText: "cdc-relay dead-letter show ID [FLAGS]",
				Description: `Shows a dead letter, its reason, and the command that requeues it. --show-payload adds the
body, or redacted_payload if that is set.`,
				Flags:  flags("show-payload", "format", "database-url", "table", "config"),
				Action: p.onNamed(p.deadLetterShow),
			},
			p.requeueCommand(),
			p.purgeCommand(),
		},
	}
}

// deadLetterListView is the JSON output of dead-letter list.
type deadLetterListView struct {
	DeadLetters []show.DeadLetter `json:"dead_letters"`
	// Next is the cursor for --after; null on the last page.
	Next *string `json:"next"`
}

func (p *process) deadLetterList(c *cli.Context) error {
	cfg, arguments, err := p.resolveNaming(c)
	if err != nil {
		return err
	}
	if err := addNames(&cfg.looking.filter, arguments); err != nil {
		return usagef("%s: %s", commandPath(c), err)
	}
	return p.withSession(c, cfg, p.showDeadLetters)
}

func (p *process) showDeadLetters(ctx context.Context, s *session) error {
	list, err := readOn(s.cfg, func(page operator.Page) (operator.Listing[operator.DeadMessage], error) {
		return s.DeadLetters(ctx, s.cfg.looking.filter, page)
	})
	if err != nil {
		return err
	}
	letters := list.Rows
	if len(letters) == 0 {
		p.noteWildcards(s.cfg)
	}
	if len(letters) == 0 && list.Next == "" && s.cfg.looking.filter.Reason != nil {
		if err := s.cfg.noneFound("dead letter"); err != nil {
			return err
		}
	}
	if s.cfg.format == formatJSON {
		return p.writeDeadLetters(s.cfg, letters, list.Next)
	}
	return p.listDeadLetters(letters, list.Next)
}

func (p *process) listDeadLetters(letters []operator.DeadMessage, next string) error {
	if len(letters) == 0 && next == "" {
		fmt.Fprintln(p.terminal.Out, "no dead letters")
		return nil
	}
	g := p.terminal.Table("ID", "DEAD FOR", "REASON", "EXCHANGE", "ROUTING KEY", "ORDERING KEY", "ATTEMPTS", "LAST ERROR").Fit()
	const wide = 60
	for _, letter := range letters {
		g.Row(fmt.Sprint(letter.ID), show.Duration(letter.ReadAt.Sub(letter.DeadAt)), show.Shortened(letter.Reason, wide),
			show.Shortened(show.ValueOr(letter.Exchange, "-"), wide), show.Shortened(letter.RoutingKey, wide), show.Shortened(show.ValueOr(letter.OrderingKey, "-"), wide),
			fmt.Sprint(letter.Attempts), show.Shortened(show.ValueOr(letter.LastError, "-"), wide))
	}
	if err := g.Write(); err != nil {
		return err
	}
	p.terminal.NextPage(len(letters), next, readFor)
	return nil
}

func (p *process) deadLetterShow(ctx context.Context, s *session, name operator.Name) error {
	letters, err := s.DeadLetter(ctx, name, s.cfg.looking.showPayload)
	if err != nil {
		return err
	}
	if s.cfg.format == formatJSON {
		if err := p.writeDeadLetters(s.cfg, letters, ""); err != nil {
			return err
		}
	} else {
		for i, letter := range letters {
			if err := p.showDeadLetter(s.cfg, letter, i > 0); err != nil {
				return err
			}
		}
	}
	if len(letters) == 0 {
		return failure.WithHint(failure.NotFound(fmt.Errorf("no dead letter %s in %s", name, s.cfg.relay.Table.DeadLetter())), "cdc-relay explain "+name.String()+s.cfg.tableFlag())
	}
	return nil
}

func (p *process) writeDeadLetters(cfg *config, letters []operator.DeadMessage, next string) error {
	view := deadLetterListView{DeadLetters: []show.DeadLetter{}, Next: orNothing(next)}
	for _, letter := range letters {
		view.DeadLetters = append(view.DeadLetters, show.DeadLetterOf(cfg.relay.Table, letter))
	}
	return p.terminal.JSON(view)
}

// showDeadLetter prints one dead letter, with an empty line first if it follows another.
func (p *process) showDeadLetter(cfg *config, letter operator.DeadMessage, follows bool) error {
	if follows {
		fmt.Fprintln(p.terminal.Out)
	}
	g := p.terminal.Table()
	g.Row("where", cfg.relay.Table.DeadLetter().String())
	show.Details(g, cfg.relay.Table.DeadLetter(), letter.StoredMessage)
	show.DeathDetails(g, cfg.relay.Table, letter)
	return g.Write()
}

// errStopped is returned if a signal interrupts a change of many rows. Finished batches stay changed.
var errStopped = errors.New("stopped")
