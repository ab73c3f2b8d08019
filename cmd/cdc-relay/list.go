package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

func (p *process) listCommand() *cli.Command {
	return &cli.Command{
		Name:      "list",
		Usage:     "list the messages that wait",
		UsageText: "cdc-relay list [FILTERS] [FLAGS]",
		Description: `Lists rows of the outbox: all of them, or those that the filters pick. Rows come in the
order of their ids; rows of a state that has a time (due, retrying, scheduled, unconfirmed)
come in the order of that time, and blocked ones by their ordering key. If few rows match, it
reads on for 5 s. If there is more, it ends with a cursor for --after. --ordering-key is fast
with any number of rows.

EXAMPLES

  cdc-relay list --state retrying
  cdc-relay list --state blocked
  cdc-relay list --routing-key 'orders.#' --older-than 10m
  cdc-relay list --json | jq -r '.messages[].message_id'`,
		Flags: asking(describe(headerColumn(pageFlags(listFilterFlags(), "format", "metrics-header", "on-dead-letter",
			"http-addr", "database-url", "table", "config")), usages{"http-addr": askForSettings})),
		Action: p.list,
	}
}

// stateSetting selects rows by their state.
func stateSetting() setting {
	var states []string
	for _, state := range operator.States() {
		states = append(states, strings.ReplaceAll(string(state), "_", "-"))
	}
	return setting{
		Info: settings.Info{
			Name: "state", Placeholder: strings.Join(states, "|"), FlagOnly: true,
			Usage: "Only messages in this state. waiting and due include blocked: those that wait for an older " +
				"message of their ordering key.",
		},
		Set: func(c *config, text string) error {
			c.selected.filter.State = operator.State(strings.ReplaceAll(text, "-", "_"))
			return settings.OneOf(strings.ReplaceAll(text, "_", "-"), states...)
		},
	}
}

// listFilterFlags are the filters without the ID. For one message there is explain.
func listFilterFlags() []cli.Flag {
	picked := slices.DeleteFunc(filterFlags(false), func(f cli.Flag) bool { return f.Names()[0] == "id" })
	return append(asFlags(stateSetting()), describe(picked, sinceCreated)...)
}

// listView is the JSON output of list.
type listView struct {
	Messages []listedView `json:"messages"`
	// Next is the cursor for --after; null on the last page.
	Next *string `json:"next"`
}

type listedView struct {
	State       operator.State `json:"state"`
	AvailableAt *time.Time     `json:"available_at"`
	LockedBy    int32          `json:"locked_by,omitempty"`
	show.Message
}

func (p *process) list(c *cli.Context) error {
	cfg, err := p.resolve(c)
	if err != nil {
		return err
	}
	if err := cfg.validate(); err != nil {
		return err
	}
	return p.withSession(c, cfg, p.showList)
}

func (p *process) showList(ctx context.Context, s *session) error {
	s.cfg = p.asRelay(ctx, s)
	list, err := readOn(s.cfg, func(page operator.Page) (operator.Listing[operator.Waiting], error) {
		return s.List(ctx, s.cfg.selected.filter, page, deadLettersBlock(&s.cfg.relay))
	})
	if err != nil {
		return err
	}
	if len(list.Rows) == 0 {
		p.noteWildcards(s.cfg)
	}
	if len(list.Rows) == 0 && list.Next == "" {
		if err := s.cfg.unknownReason("message of the outbox"); err != nil {
			return err
		}
	}
	if s.cfg.format == formatJSON {
		view := listView{Messages: []listedView{}, Next: orNothing(list.Next)}
		for _, w := range list.Rows {
			view.Messages = append(
				view.Messages,
				listedView{w.State, show.TimeOrNull(w.AvailableAt), w.LockedBy, show.MessageOf(w.StoredMessage)},
			)
		}
		return p.terminal.JSON(view)
	}
	if len(list.Rows) == 0 && list.Next == "" {
		fmt.Fprintln(p.terminal.Out, "no messages")
		return nil
	}
	header := s.cfg.relay.MetricsHeader
	keys := withHeader("ROUTING KEY", header, headerTitle(header))
	g := p.terminal.Table(slices.Concat([]string{"ID", "AGE", "STATE", "NEXT", "EXCHANGE"}, keys,
		[]string{"ORDERING KEY", "ATTEMPTS", "LAST ERROR"})...).Fit()
	for _, w := range list.Rows {
		first := []string{
			fmt.Sprint(w.ID), show.Duration(w.Age()), string(w.State), show.NextTime(w), show.CellOrDash(w.Exchange),
		}
		g.Row(slices.Concat(first, withHeader(show.Cell(w.RoutingKey), header, w.Header(header)),
			[]string{show.CellOrDash(w.OrderingKey), fmt.Sprint(w.Attempts), show.CellOrDash(w.LastError)})...)
	}
	if err := g.Write(); err != nil {
		return err
	}
	p.terminal.NextPage(len(list.Rows), list.Next, readFor)
	return nil
}

// headerColumn describes --metrics-header for commands that list messages.
func headerColumn(picked []cli.Flag) []cli.Flag {
	return describe(picked, usages{"metrics-header": showHeader})
}

// withHeader returns the column of the routing key, and one for the header of --metrics-header if it is not "".
func withHeader(key, header, value string) []string {
	if header == "" {
		return []string{key}
	}
	return []string{key, show.OrElse(show.Cell(value), "-")}
}

func headerTitle(header string) string { return strings.ToUpper(header) }

// readFor is how long a list reads on if the filter matches few rows.
const readFor = 5 * time.Second

// readOn reads pages until the list has as many rows as asked for, ends, or has taken readFor.
func readOn[T any](
	c *config, page func(operator.Page) (operator.Listing[T], error),
) (list operator.Listing[T], err error) {
	wanted := c.page()
	for began := time.Now(); ; {
		next, err := page(wanted)
		if err != nil {
			return list, c.pageError(err)
		}
		list.Rows, list.Next = append(list.Rows, next.Rows...), next.Next
		wanted.After, wanted.Limit = next.Next, wanted.Limit-len(next.Rows)
		if wanted.After == "" || wanted.Limit == 0 || time.Since(began) > readFor {
			return list, nil
		}
	}
}

// orNothing returns nil for "".
func orNothing(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
