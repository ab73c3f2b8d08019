package main

import (
	"context"
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
  cdc-relay dead-letter list --json | jq -r '.dead_letters[].message_id'`,
				Flags: headerColumn(
					pageFlags(filterFlags(false), "format", "metrics-header", "database-url", "table", "config")),
				Action: p.with(p.resolveNamed, p.deadLetterList),
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

func (p *process) deadLetterList(ctx context.Context, s *session) error {
	return listing[operator.DeadMessage]{
		what: "dead letters",
		read: func(page operator.Page) (operator.Listing[operator.DeadMessage], error) {
			return s.DeadLetters(ctx, s.cfg.selected.filter, page)
		},
		none: func() error {
			if s.cfg.selected.filter.Reason == nil {
				return nil
			}
			return s.cfg.noneFound("dead letter")
		},
		view: s.cfg.deadLettersView,
		columns: []string{
			"ID", "DEAD FOR", "REASON", "EXCHANGE", routingKeyColumn, "ORDERING KEY", "ATTEMPTS", "LAST ERROR",
		},
		cells: func(m operator.DeadMessage) []string {
			return []string{
				fmt.Sprint(m.ID), show.Duration(m.ReadAt.Sub(m.DeadAt)), show.Cell(m.Reason),
				show.CellOrDash(m.Exchange), show.Cell(m.RoutingKey), show.CellOrDash(m.OrderingKey),
				fmt.Sprint(m.Attempts), show.CellOrDash(m.LastError),
			}
		},
		header: operator.DeadMessage.Header,
	}.show(p, s.cfg)
}

func (p *process) deadLetterShow(ctx context.Context, s *session, name operator.Name) error {
	letters, err := s.DeadLetter(ctx, name, s.cfg.selected.showPayload)
	if err != nil {
		return err
	}
	if s.cfg.format == formatJSON {
		if err := p.terminal.JSON(s.cfg.deadLettersView(letters, nil)); err != nil {
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
		return failure.WithHint(
			failure.NotFound(fmt.Errorf("no dead letter %s in %s", name, s.cfg.relay.Table.DeadLetter())),
			"cdc-relay explain "+name.String()+s.cfg.tableFlag(),
		)
	}
	return nil
}

func (c *config) deadLettersView(letters []operator.DeadMessage, next *string) any {
	return deadLetterListView{each(letters, func(letter operator.DeadMessage) show.DeadLetter {
		return show.DeadLetterOf(c.relay.Table, letter)
	}), next}
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

func (p *process) requeueCommand() *cli.Command {
	return &cli.Command{
		Name:      "requeue",
		Usage:     "move dead letters back to the outbox",
		UsageText: "cdc-relay dead-letter requeue ID…|FILTERS|--all [FLAGS]",
		Description: `Moves dead letters back to the outbox. They are due at once and get all their attempts again.
Each keeps its id: messages of one ordering key are published in their old order, before the
rows of the key that wait. Relays may run meanwhile. It moves batches of 1000, each in one
transaction. If you stop it, run it again. On a terminal it asks, unless you give IDs or
--yes.

EXAMPLES

  cdc-relay dead-letter requeue 42
  cdc-relay dead-letter requeue --reason unroutable --routing-key 'orders.*'
  cdc-relay dead-letter requeue --all --dry-run`,
		Flags:  changeFlags(filterFlags(true)),
		Action: p.with(p.resolveSelecting, p.requeue),
	}
}

func (p *process) purgeCommand() *cli.Command {
	return &cli.Command{
		Name:      "purge",
		Usage:     "delete dead letters",
		UsageText: "cdc-relay dead-letter purge ID…|FILTERS|--all [FLAGS]",
		Description: `Deletes dead letters for good. It shows how many, and asks unless --yes is given. With
"run --on-dead-letter block", their ordering keys continue. To delete old dead letters
automatically, use run --dead-letter-retention.

EXAMPLES

  cdc-relay dead-letter purge --older-than 30d --dry-run
  cdc-relay dead-letter purge --older-than 30d --yes`,
		Flags:  changeFlags(filterFlags(true)),
		Action: p.with(p.resolveSelecting, p.purge),
	}
}

// requeueView is the JSON output of dead-letter requeue.
type requeueView struct {
	DryRun bool `json:"dry_run"`
	// Matched counts the selected dead letters; Requeued those back in the outbox; RequeuedWithNewID those of them that
	// got a new id, because the old one was taken; NotTaken those that stay dead letters.
	Matched           int64  `json:"matched"`
	Requeued          int64  `json:"requeued"`
	RequeuedWithNewID int64  `json:"requeued_with_new_id"`
	NotTaken          int64  `json:"not_taken"`
	Error             string `json:"error,omitempty"`
}

func (p *process) requeue(ctx context.Context, s *session) error {
	if s.cfg.selected.dryRun {
		return p.countDeadLetters(ctx, s, "requeue", func(n int64) any { return requeueView{DryRun: true, Matched: n} })
	}
	ch := &change{
		process: p, cfg: s.cfg, doing: "requeuing", what: "dead letter", notDone: "nothing was requeued",
		harmless: true,
		question: func(total int64) string {
			from := s.cfg.relay.Table.DeadLetter()
			return fmt.Sprintf("Send %s of %s at %s?", show.Plural(total, "dead letter"), from, where(s.conn.Config()))
		},
	}
	agreed, bar := ch.begin(ctx)
	done, failed := s.Requeue(ctx, s.cfg.selected.filter, operator.ChangeBatch, agreed, bar)
	if failed == nil {
		failed = s.cfg.rejectedByOutbox(done)
	}
	view := requeueView{Matched: ch.matched, Requeued: done.Sent, RequeuedWithNewID: done.Moved, NotTaken: done.Left}
	return ch.end(ctx, &view, &view.Error, requeuedText(done), done.Sent, failed)
}

// requeuedText says what a requeue has done.
func requeuedText(done operator.Requeued) string {
	text := "requeued " + show.Plural(done.Sent, "dead letter")
	if done.Moved > 0 {
		text += fmt.Sprintf(", %s with a new id, since the old ones are not free", show.Number(done.Moved))
	}
	return text
}

// rejectedByOutbox is the error of a requeue that leaves dead letters behind, or nil.
func (c *config) rejectedByOutbox(done operator.Requeued) error {
	if done.Left == 0 {
		return nil
	}
	return failure.WithHint(
		fmt.Errorf("the outbox rejects %s: %w", show.Plural(done.Left, "dead letter"), done.Why),
		"fix the rows in "+c.relay.Table.DeadLetter().String()+", or purge them",
	)
}

// countDeadLetters prints how many dead letters a command would change.
func (p *process) countDeadLetters(ctx context.Context, s *session, verb string, view func(n int64) any) error {
	n, err := s.CountDeadLetters(ctx, s.cfg.selected.filter)
	if err == nil && n == 0 {
		err = p.none(s.cfg, "dead letter")
	}
	if err != nil {
		return err
	}
	return p.printResult(s.cfg, view(n), "would "+verb+" "+show.Plural(n, "dead letter"))
}

// purgeView is the JSON output of dead-letter purge.
type purgeView struct {
	DryRun  bool   `json:"dry_run"`
	Matched int64  `json:"matched"`
	Purged  int64  `json:"purged"`
	Error   string `json:"error,omitempty"`
}

func (p *process) purge(ctx context.Context, s *session) error {
	if s.cfg.selected.dryRun {
		return p.countDeadLetters(ctx, s, "delete", func(n int64) any { return purgeView{DryRun: true, Matched: n} })
	}
	ch := &change{
		process: p, cfg: s.cfg, doing: "deleting", what: "dead letter", notDone: "nothing was deleted",
		question: func(total int64) string {
			from := s.cfg.relay.Table.DeadLetter()
			letters := show.Plural(total, "dead letter")
			return fmt.Sprintf("Delete %s from %s at %s?", letters, from, where(s.conn.Config()))
		},
	}
	agreed, bar := ch.begin(ctx)
	purged, failed := s.Purge(ctx, s.cfg.selected.filter, operator.ChangeBatch, agreed, bar)
	view := purgeView{Matched: ch.matched, Purged: purged}
	return ch.end(ctx, &view, &view.Error, "deleted "+show.Plural(purged, "dead letter"), purged, failed)
}
