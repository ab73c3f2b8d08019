package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

func (p *process) keysCommand() *cli.Command {
	return &cli.Command{
		Name:      "keys",
		Usage:     "list the ordering keys that have messages, and why they wait",
		UsageText: "cdc-relay keys [--blocked] [FLAGS]",
		Description: `Lists each ordering key with rows in the outbox: its first row, how many rows are behind it,
and what happens next. With --blocked only keys whose first row waits for its time, and with
--on-dead-letter block those that a dead letter blocks. "cdc-relay list --ordering-key KEY"
lists the rows of one.

The relay at --http-addr tells its settings, such as --on-dead-letter.`,
		Flags: asking(describe(pageFlags(
			asFlags(blockedSetting()), "format", "http-addr", "database-url", "table", "config",
			"on-dead-letter", "max-retries", "poll-interval", "mode", "slot", "shard",
		), usages{"http-addr": askForState})),
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
	First               listedView         `json:"first"`
	// Why says in words why the key waits.
	Why string `json:"why"`
	// DeadLetter is the key's dead letter with the lowest id; null: there is none.
	DeadLetter *int64 `json:"dead_letter"`
}

func (p *process) keys(ctx context.Context, s *session) error {
	around, err := p.surroundings(ctx, s)
	if err != nil {
		return err
	}
	viewOf := func(k operator.Key) keyView {
		return keyView{
			Key: k.Key, RowsBehind: k.Behind.N, RowsBehindPrecision: k.Behind.Precision, First: listedOf(k.First),
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
