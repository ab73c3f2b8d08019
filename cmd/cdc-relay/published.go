package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

func (p *process) publishedCommand() *cli.Command {
	return &cli.Command{
		Name:      "published",
		Usage:     "list published messages, or send them again",
		UsageText: "cdc-relay published list|show|replay [ID…] [FLAGS]",
		Description: `With run --keep-published, published messages are kept for a while in a table of their own
(public.outbox_published). An ID is that of the row, or the message_id.`,
		Subcommands: []*cli.Command{
			{
				Name:      "list",
				Usage:     "list published messages, newest first",
				UsageText: "cdc-relay published list [FILTERS] [FLAGS]",
				Description: `Lists published messages, all or those that the filters pick. ` +
					`--older-than and --newer-than
count from the time of publishing. If few messages match, it reads on for 5 s. If there is
more, it ends with a cursor for --after.

EXAMPLES

  cdc-relay published list --routing-key 'orders.#' --newer-than 2026-11-24T10:00Z`,
				Flags: headerColumn(pageFlags(
					historyFilterFlags(false), "format", "metrics-header", "database-url", "table", "config")),
				Action: p.with(p.resolveNamed, p.publishedList),
			},
			{
				Name:      "show",
				Usage:     "show one published message",
				UsageText: "cdc-relay published show ID [FLAGS]",
				Description: `Shows a published message. ` +
					`--show-payload adds the body, or redacted_payload if that is set.`,
				Flags:  flags("show-payload", "format", "database-url", "table", "config"),
				Action: p.onNamed(p.publishedShow),
			},
			p.replayCommand(),
		},
	}
}

// historyFilterFlags are the filters without the reason: nothing in the history has failed.
func historyFilterFlags(all bool) []cli.Flag {
	picked := slices.DeleteFunc(filterFlags(all), func(f cli.Flag) bool { return f.Names()[0] == "reason" })
	return describe(picked, sincePublished)
}

// replayFlags are the flags of published replay.
type replayFlags struct {
	exchange, routingKey *string
	perSecond            float64
	afterID              *int64
}

// replaySettings are those that only published replay has.
func replaySettings() []setting {
	text := func(name, value, usage string, field func(*replayFlags) **string) setting {
		return setting{
			Info: settings.Info{
				Name: name, Placeholder: value, Usage: usage, FlagOnly: true,
			},
			Set: func(c *config, text string) error {
				*field(&c.selected.replaying) = &text
				return checkName(text)
			},
		}
	}
	return []setting{
		text("to-exchange", "NAME", "Send to this exchange instead; '': the default exchange.",
			func(r *replayFlags) **string { return &r.exchange }),
		text("to-routing-key", "KEY", "Send with this routing key instead.",
			func(r *replayFlags) **string { return &r.routingKey }),
		{
			Info: settings.Info{
				Name: "rate", Placeholder: "NUMBER", FlagOnly: true,
				Usage: "At most this many messages a second. Default: no limit.",
			},
			Set: func(c *config, text string) error {
				n, err := strconv.ParseFloat(text, 64)
				if err != nil || !(n >= 0.1 && n <= 1e6) {
					return fmt.Errorf("%q: want a number from 0.1 to 1000000", text)
				}
				c.selected.replaying.perSecond = n
				return nil
			},
		},
		{
			Info: settings.Info{
				Name: "after-id", Placeholder: "ID", FlagOnly: true,
				Usage: "Only messages with a greater id: continues a replay that was interrupted.",
			},
			Set: func(c *config, text string) error {
				n, err := strconv.ParseInt(text, 10, 64)
				if c.selected.replaying.afterID = &n; err != nil {
					return fmt.Errorf("%q: want the id of a row, such as 42", text)
				}
				return nil
			},
		},
	}
}

func (p *process) replayCommand() *cli.Command {
	return &cli.Command{
		Name:      "replay",
		Usage:     "send published messages again",
		UsageText: "cdc-relay published replay ID…|FILTERS|--all [FLAGS]",
		Description: `Inserts copies of published messages into the outbox, oldest first. A running relay publishes
them. Each copy keeps its message_id and carries x-possible-duplicate, so a consumer that
knows the message ignores it. To fill a new queue, bind it to an exchange of its own and
set that in --to-exchange. It shows how many, and asks unless --yes is given. --dry-run
prints the number only.

EXAMPLES

  cdc-relay published replay 42
  cdc-relay published replay --routing-key orders.created --to-exchange backfill --rate 200 --yes`,
		Flags:  changeFlags(append(historyFilterFlags(true), asFlags(replaySettings()...)...)),
		Action: p.with(p.resolveSelecting, p.replay),
	}
}

// publishedListView is the JSON output of published list and show.
type publishedListView struct {
	Published []show.Published `json:"published"`
	// Next is the cursor for --after; null on the last page.
	Next *string `json:"next"`
}

func publishedView(messages []operator.PublishedMessage, next *string) any {
	return publishedListView{each(messages, show.PublishedOf), next}
}

func (p *process) publishedList(ctx context.Context, s *session) error {
	return listing[operator.PublishedMessage]{
		what: "published messages",
		read: func(page operator.Page) (operator.Listing[operator.PublishedMessage], error) {
			return s.PublishedMessages(ctx, s.cfg.selected.filter, page)
		},
		view:    publishedView,
		columns: []string{"ID", "PUBLISHED", "AGO", "MESSAGE ID", "EXCHANGE", routingKeyColumn, "ORDERING KEY"},
		cells: func(m operator.PublishedMessage) []string {
			return []string{
				fmt.Sprint(m.ID), show.Time(m.PublishedAt), show.Duration(m.ReadAt.Sub(m.PublishedAt)),
				m.MessageID.String(), show.CellOrDash(m.Exchange), show.Cell(m.RoutingKey),
				show.CellOrDash(m.OrderingKey),
			}
		},
		header: operator.PublishedMessage.Header,
	}.show(p, s.cfg)
}

func (p *process) publishedShow(ctx context.Context, s *session, name operator.Name) error {
	messages, err := s.Published(ctx, name, s.cfg.selected.showPayload)
	if err != nil {
		return err
	}
	if s.cfg.format == formatJSON {
		err = p.terminal.JSON(publishedView(messages, nil))
	}
	for i, m := range messages {
		if err == nil && s.cfg.format != formatJSON {
			err = p.showPublished(s.cfg, m, i > 0)
		}
	}
	if err == nil && len(messages) == 0 {
		err = failure.WithHint(
			failure.NotFound(fmt.Errorf("no message %s in %s", name, s.cfg.relay.Table.Published())),
			"cdc-relay explain "+name.String()+s.cfg.tableFlag(),
		)
	}
	return err
}

// showPublished prints one message, with an empty line first if it follows another.
func (p *process) showPublished(cfg *config, m operator.PublishedMessage, follows bool) error {
	if follows {
		fmt.Fprintln(p.terminal.Out)
	}
	g := p.terminal.Table()
	g.Row("where", cfg.relay.Table.Published().String())
	g.Row("published", fmt.Sprintf("%s, %s ago", show.Time(m.PublishedAt), show.Duration(m.ReadAt.Sub(m.PublishedAt))))
	show.Details(g, cfg.relay.Table.Published(), m.StoredMessage)
	return g.Write()
}

// replayView is the JSON output of published replay.
type replayView struct {
	DryRun   bool   `json:"dry_run"`
	Matched  int64  `json:"matched"`
	Replayed int64  `json:"replayed"`
	LastID   *int64 `json:"last_id"` // of the last message that was replayed, for --after-id
	Error    string `json:"error,omitempty"`
}

func (p *process) replay(ctx context.Context, s *session) error {
	how := s.cfg.selected.replaying
	ch := &change{
		process: p, cfg: s.cfg, doing: "replaying", what: "published message", again: "run it again",
		notDone: "nothing was sent", question: func(total int64) string {
			to := ""
			if how.exchange != nil {
				to = " to exchange " + strconv.Quote(show.Printable(*how.exchange))
			}
			from, at := s.cfg.relay.Table.Published(), where(s.conn.Config())
			return fmt.Sprintf("Send %s of %s again%s, at %s?", show.Plural(total, "message"), from, to, at)
		},
	}
	dry := s.cfg.selected.dryRun
	agreed, bar := ch.begin(ctx)
	result, failed := s.Replay(ctx, s.cfg.selected.filter, operator.Replay{
		Exchange: how.exchange, RoutingKey: how.routingKey, PerSecond: how.perSecond, Batch: operator.ChangeBatch,
		Dry: dry, AfterID: how.afterID,
	}, agreed, bar)
	ch.matched = result.Matched
	view := replayView{DryRun: dry, Matched: result.Matched, Replayed: result.Count}
	if result.Count > 0 {
		view.LastID = &result.LastID
		ch.again = fmt.Sprintf("run it again with --after-id %d for the others", result.LastID)
	}
	text, done := "replayed "+show.Plural(view.Replayed, "message"), view.Replayed
	if dry {
		text, done = "would replay "+show.Plural(view.Matched, "message"), view.Matched
	}
	return ch.end(ctx, &view, &view.Error, text, done, failed)
}
