package main

import (
	"context"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

func (p *process) listCommand() *cli.Command {
	state := stateSetting("Only messages in this state:")
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

func (p *process) list(ctx context.Context, s *session) error {
	around, err := show.SurroundingsOf(ctx, s.Tables, p.source(s.cfg))
	if err != nil {
		return err
	}
	filter, err := around.Filter(s.cfg.selected.filter)
	if err != nil {
		return err
	}
	one := "message"
	switch filter.State {
	case operator.Dead:
		one = "dead letter"
	case operator.Published:
		one = "published message"
	}
	columns := show.MessageColumns(filter.State, s.cfg.relay.MetricsHeader)
	if s.cfg.selected.payload {
		columns = append(columns, show.BodyColumn())
	}
	return listing[operator.Message]{
		what: one + "s",
		read: func(page operator.Page) (operator.Listing[operator.Message], error) {
			list, err := s.listed(ctx, filter, page)
			list.Rows = around.Told(list.Rows)
			return list, err
		},
		none:    func() error { return s.cfg.noneFound(one) },
		key:     "messages",
		view:    func(m operator.Message) any { return show.MessageOf(m) },
		columns: columns,
	}.show(p, s.cfg)
}

// listed reads a page. Messages that are named are found wherever they are.
func (s *session) listed(
	ctx context.Context, filter operator.Filter, page operator.Page,
) (list operator.Listing[operator.Message], err error) {
	if !filter.OnlyNamed() {
		return s.List(ctx, filter, page)
	}
	for _, name := range filter.Names() {
		found, err := s.Find(ctx, name, filter.Known, page.Payload)
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

// keyView is a key in the JSON output of keys.
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
	viewOf := func(k operator.Key) any {
		return keyView{
			Key: k.Key, RowsBehind: k.Behind.N, RowsBehindPrecision: k.Behind.Precision, First: show.MessageOf(k.First),
			Why: around.Why(k), DeadLetter: k.Dead,
		}
	}
	return listing[operator.Key]{
		what: "ordering keys",
		read: func(page operator.Page) (operator.Listing[operator.Key], error) {
			return s.Keys(ctx, s.cfg.selected.blocked, around.Known(), page)
		},
		key:     "keys",
		view:    viewOf,
		columns: around.KeyColumns(),
	}.show(p, s.cfg)
}
