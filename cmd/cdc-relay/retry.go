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
		Flags: describe(
			describe(filterFlags(true, "dry-run", "yes", "format", "database-url", "table", "config"), sinceCreated),
			usages{"yes": doNotAsk},
		),
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
	view := retryView{DryRun: s.cfg.selected.dryRun}
	asking := &consent{process: p, cfg: s.cfg, notDone: "nothing was changed", harmless: true}
	asking.question = func(total int64) string {
		messages, at := show.Plural(total, "message"), where(s.conn.Config())
		return fmt.Sprintf("Make %s of %s at %s due now?", messages, s.cfg.relay.Table, at)
	}
	agreed := asking.agree(ctx)
	if view.DryRun {
		agreed = nil
	}
	bar, end := p.terminal.Progress("making due", operator.ChangeBatch)
	progress := func(n, total int64) {
		view.Matched = total
		bar(n, total)
	}
	done, failed := s.RetryNow(ctx, s.cfg.selected.filter, operator.ChangeBatch, view.DryRun, agreed, progress)
	end()
	if asking.refused != nil {
		return asking.refused
	}
	view.Retried, view.Left = done.Due, done.Left
	text := retriedText(done)
	if view.DryRun {
		text = "would make " + strings.TrimPrefix(text, "made ")
	}
	if failed == nil && view.Matched == 0 {
		failed = p.none(s.cfg, "waiting retry")
	}
	changed := done.Due + done.Left
	return p.printChange(
		ctx, s.cfg, change{&view, &view.Error, text, changed, view.Matched - changed, failed, againForOthers},
	)
}

// retriedText says what a retry has done.
func retriedText(done operator.Retried) string {
	text := "made " + show.Plural(done.Due, "message") + " due now"
	if done.Left > 0 {
		text += fmt.Sprintf("; %s left alone: a relay has locked them", show.Number(done.Left))
	}
	return text
}
