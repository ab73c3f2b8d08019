package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

func (p *process) retryCommand() *cli.Command {
	return &cli.Command{
		Name:      "retry",
		Usage:     "retry rejected messages now",
		UsageText: "cdc-relay retry ID…|FILTERS|--all [FLAGS]",
		Description: `Makes rejected messages due now, with all their attempts again. Use it after you have fixed
the cause in RabbitMQ. Relays may run meanwhile. It skips messages that a relay has
locked, because that relay publishes them now. On a terminal it asks, unless you give IDs or
--yes.

EXAMPLES

  cdc-relay retry --all
  cdc-relay retry --reason unroutable --routing-key 'orders.*'
  cdc-relay retry 42`,
		Flags:  changeFlags(describe(filterFlags(true), sinceCreated)),
		Action: p.with(p.resolveSelecting, p.retry),
	}
}

// retryView is the JSON output of retry.
type retryView struct {
	DryRun bool `json:"dry_run"`
	// Matched counts the selected rows; Retried those that are due now; Left those that a relay has locked.
	Matched int64  `json:"matched"`
	Retried int64  `json:"retried"`
	Left    int64  `json:"left"`
	Error   string `json:"error,omitempty"`
}

func (p *process) retry(ctx context.Context, s *session) error {
	ch := &change{
		process: p, cfg: s.cfg, doing: "making due", what: "waiting retry", notDone: "nothing was changed",
		harmless: true,
		question: func(total int64) string {
			messages, at := show.Plural(total, "message"), where(s.conn.Config())
			return fmt.Sprintf("Make %s of %s at %s due now?", messages, s.cfg.relay.Table, at)
		},
	}
	dry := s.cfg.selected.dryRun
	agreed, bar := ch.begin(ctx)
	done, failed := s.RetryNow(ctx, s.cfg.selected.filter, operator.ChangeBatch, dry, agreed, bar)
	view := retryView{DryRun: dry, Matched: ch.matched, Retried: done.Due, Left: done.Left}
	text := retriedText(done)
	if dry {
		text = "would make " + strings.TrimPrefix(text, "made ")
	}
	return ch.end(ctx, &view, &view.Error, text, done.Due+done.Left, failed)
}

// retriedText says what a retry has done.
func retriedText(done operator.Retried) string {
	text := "made " + show.Plural(done.Due, "message") + " due now"
	if done.Left > 0 {
		text += fmt.Sprintf("; %s left alone: a relay has locked them", show.Number(done.Left))
	}
	return text
}
