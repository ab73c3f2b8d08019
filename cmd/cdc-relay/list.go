package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

func (p *process) listCommand() *cli.Command {
	state := stateSetting("Only messages in this state. waiting and due include blocked: those that wait for an older "+
		"message of their ordering key. States:", allStates()...)
	return &cli.Command{
		Name:      "list",
		Usage:     "list messages that wait, are dead, or were published",
		UsageText: "cdc-relay list [--state STATE] [FILTERS] [FLAGS]",
		Description: `Lists rows of the outbox: all of them, or those that the filters pick. With --state dead it
lists dead letters, with --state published the history (run --keep-published). --id finds
messages in all three.

Rows come in the order of their ids; rows of a state that has a time (due, retrying,
scheduled) come in the order of that time, blocked ones by their ordering key,
dead and published ones newest first. If few rows match, it reads on for 5 s. If there is
more, it ends with a cursor for --after. --ordering-key is fast with any number of rows.

EXAMPLES

  cdc-relay list --state blocked
  cdc-relay list --routing-key 'orders.#' --older-than 10m
  cdc-relay list --state dead --reason unroutable --newer-than 24h
  cdc-relay list --json | jq -r '.messages[].message_id'`,
		Flags: asking(describe(pageFlags(append(asFlags(state), asFlags(filterSettings()...)...),
			"payload", "json", "metrics-header", "on-dead-letter", "database-url", "table", "config",
		), usages{"metrics-header": showHeader})),
		Action: p.with(p.resolveListing, p.list),
	}
}

func (p *process) resolveListing(c *cli.Context) (*config, error) {
	cfg, err := p.resolveValid(c)
	if err != nil {
		return nil, err
	}
	if f := cfg.selected.filter; f.Named() && f.State.Waits() && !f.OnlyNamed() {
		return nil, usagef("list: --id finds a message in any state: leave out the other filters")
	}
	return cfg, nil
}

// listView is the JSON output of list.
type listView struct {
	Messages []show.Message `json:"messages"`
	// Next is the cursor for --after; null on the last page.
	Next *string `json:"next"`
}

func (p *process) list(ctx context.Context, s *session) error {
	around, err := show.SurroundingsOf(ctx, s.Tables, p.source(s.cfg))
	if err != nil {
		return err
	}
	filter := s.cfg.selected.filter
	filter.Block = show.DeadLettersBlock(around.Config)
	if filter.State == operator.NotDeleted {
		if filter, err = around.NotDeleted(filter); err != nil {
			return err
		}
	}
	l := listing[operator.Message]{
		what: "messages",
		read: func(page operator.Page) (operator.Listing[operator.Message], error) {
			list, err := s.listed(ctx, filter, page)
			list.Rows = around.Known(list.Rows)
			return list, err
		},
		none: func() error { return s.cfg.noneFound("message") },
		view: func(rows []operator.Message, next *string) any { return listView{each(rows, show.MessageOf), next} },
		columns: []string{
			"ID", "AGE", "STATE", "NEXT", "EXCHANGE", routingKeyColumn, "ORDERING KEY", "ATTEMPTS", "LAST ERROR",
		},
		cells: func(w operator.Message) []string {
			return []string{
				fmt.Sprint(w.ID), show.Duration(w.Age()), show.StateText(w.State), show.NextTime(w),
				show.OrElse(show.Exchange(w.Exchange), "-"), show.Cell(w.RoutingKey), show.CellOrDash(w.OrderingKey),
				fmt.Sprint(w.Attempts), show.CellOrDash(w.LastError),
			}
		},
		header: operator.Message.Header,
	}
	switch filter.State {
	case operator.Dead:
		l.what, l.none = "dead letters", func() error { return s.cfg.noneFound("dead letter") }
		l.columns = []string{
			"ID", "DEAD FOR", "REASON", "EXCHANGE", routingKeyColumn, "ORDERING KEY", "ATTEMPTS", "LAST ERROR",
		}
		l.cells = func(m operator.Message) []string {
			return []string{
				fmt.Sprint(m.ID), show.Duration(m.ReadAt.Sub(m.DeadAt)), show.Reason(m),
				show.OrElse(show.Exchange(m.Exchange), "-"), show.Cell(m.RoutingKey), show.CellOrDash(m.OrderingKey),
				fmt.Sprint(m.Attempts), show.CellOrDash(m.LastError),
			}
		}
	case operator.Published:
		l.what, l.none = "published messages", func() error { return s.cfg.noneFound("published message") }
		l.columns = []string{"ID", "PUBLISHED", "AGO", "MESSAGE ID", "EXCHANGE", routingKeyColumn, "ORDERING KEY"}
		l.cells = func(m operator.Message) []string {
			return []string{
				fmt.Sprint(m.ID), show.Time(m.PublishedAt), show.Duration(m.ReadAt.Sub(m.PublishedAt)),
				m.MessageID.String(), show.OrElse(show.Exchange(m.Exchange), "-"), show.Cell(m.RoutingKey),
				show.CellOrDash(m.OrderingKey),
			}
		}
	}
	if s.cfg.selected.payload {
		cells := l.cells
		l.columns = append(l.columns, "PAYLOAD")
		l.cells = func(m operator.Message) []string { return append(cells(m), show.BodyCell(m)) }
	}
	return l.show(p, s.cfg)
}

// listed reads a page. Messages that are named are found wherever they are.
func (s *session) listed(
	ctx context.Context, filter operator.Filter, page operator.Page,
) (list operator.Listing[operator.Message], err error) {
	if !filter.OnlyNamed() {
		return s.List(ctx, filter, page)
	}
	for _, name := range filter.Names() {
		found, err := s.Find(ctx, name, page.Payload)
		if err != nil {
			return list, err
		}
		list.Rows = append(list.Rows, found...)
	}
	return list, nil
}

func (p *process) keysCommand() *cli.Command {
	return &cli.Command{
		Name:      "keys",
		Usage:     "list the ordering keys that have messages, and why they wait",
		UsageText: "cdc-relay keys [--blocked] [FLAGS]",
		Description: `Lists each ordering key with rows in the outbox: its first row, how many rows are behind it,
and what happens next. With --blocked only keys whose first row waits for its time, and with
--on-dead-letter block those that a dead letter blocks. "cdc-relay list --ordering-key KEY"
lists the rows of one.`,
		Flags: asking(pageFlags(
			asFlags(blockedSetting()), "json", "database-url", "table", "config",
			"on-dead-letter", "max-retries", "poll-interval", "mode", "slot", "shard",
		)),
		Action: p.with(p.resolveValid, p.keys),
	}
}

// keysView is the JSON output of keys.
type keysView struct {
	Keys []keyView `json:"keys"`
	// Next is the cursor for --after; null on the last page.
	Next *string `json:"next"`
}

type keyView struct {
	Key                 string             `json:"key"`
	RowsBehind          int64              `json:"rows_behind"`
	RowsBehindPrecision operator.Precision `json:"rows_behind_precision"`
	First               show.Message       `json:"first"`
	// Why says in words why the key waits.
	Why string `json:"why"`
	// DeadLetter is the key's dead letter with the lowest id; null: there is none.
	DeadLetter *int64 `json:"dead_letter"`
}

func (p *process) keys(ctx context.Context, s *session) error {
	around, err := show.SurroundingsOf(ctx, s.Tables, p.source(s.cfg))
	if err != nil {
		return err
	}
	viewOf := func(k operator.Key) keyView {
		return keyView{
			Key: k.Key, RowsBehind: k.Behind.N, RowsBehindPrecision: k.Behind.Precision, First: show.MessageOf(k.First),
			Why: around.Why(k), DeadLetter: k.Dead,
		}
	}
	return listing[operator.Key]{
		what: "ordering keys",
		read: func(page operator.Page) (operator.Listing[operator.Key], error) {
			return s.keysPage(ctx, page, show.DeadLettersBlock(around.Config))
		},
		view:    func(rows []operator.Key, next *string) any { return keysView{each(rows, viewOf), next} },
		columns: []string{"ORDERING KEY", "BEHIND", "FIRST", "STATE", "WHY IT WAITS"},
		cells: func(k operator.Key) []string {
			return []string{
				show.Shortened(k.Key, 60), show.Count(k.Behind), fmt.Sprint(k.First.ID), string(k.First.State),
				show.Shortened(around.Why(k), 160),
			}
		},
	}.show(p, s.cfg)
}

func (s *session) keysPage(
	ctx context.Context, page operator.Page, block bool,
) (operator.Listing[operator.Key], error) {
	if !s.cfg.selected.blocked {
		return s.Keys(ctx, page)
	}
	return s.BlockedKeys(ctx, block, page)
}
