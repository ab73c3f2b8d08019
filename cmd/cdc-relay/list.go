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
		Action: p.with(p.resolveValid, p.list),
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

func listedOf(w operator.Waiting) listedView {
	return listedView{w.State, show.TimeOrNull(w.AvailableAt), w.LockedBy, show.MessageOf(w.StoredMessage)}
}

func (p *process) list(ctx context.Context, s *session) error {
	s.cfg = p.asRelay(ctx, s)
	return listing[operator.Waiting]{
		what: "messages",
		read: func(page operator.Page) (operator.Listing[operator.Waiting], error) {
			return s.List(ctx, s.cfg.selected.filter, page, show.DeadLettersBlock(&s.cfg.relay))
		},
		none: func() error { return s.cfg.unknownReason("message of the outbox") },
		view: func(rows []operator.Waiting, next *string) any { return listView{each(rows, listedOf), next} },
		columns: []string{
			"ID", "AGE", "STATE", "NEXT", "EXCHANGE", routingKeyColumn, "ORDERING KEY", "ATTEMPTS", "LAST ERROR",
		},
		cells: func(w operator.Waiting) []string {
			return []string{
				fmt.Sprint(w.ID), show.Duration(w.Age()), string(w.State), show.NextTime(w),
				show.CellOrDash(w.Exchange), show.Cell(w.RoutingKey), show.CellOrDash(w.OrderingKey),
				fmt.Sprint(w.Attempts), show.CellOrDash(w.LastError),
			}
		},
		header: operator.Waiting.Header,
	}.show(p, s.cfg)
}
