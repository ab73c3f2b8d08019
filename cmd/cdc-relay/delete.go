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

func (p *process) deleteCommand() *cli.Command {
	return &cli.Command{
		Name:      "delete",
		Usage:     "delete a message that waits",
		UsageText: "cdc-relay delete ID… [FLAGS]",
		Description: `Deletes messages of the outbox for good, and says whether a relay may have published them.
Only a message whose time has not come (scheduled, or in retry) is certainly unpublished. A
message that a relay has locked stays. The next message of its ordering key no longer waits
for it, and outbox_await reports it as published. It shows how many, and asks unless --yes is
given. ID is the row's id, or the message_id. For dead letters there is dead-letter purge.

EXAMPLES

  cdc-relay delete 42
  cdc-relay delete 42 43 --dry-run`,
		Flags:  changeFlags(nil),
		Action: p.onEach(p.delete),
	}
}

// deleteView is the JSON output of delete.
type deleteView struct {
	DryRun bool `json:"dry_run"`
	// Matched counts the rows of the outbox; Deleted those that are gone; Unpublished those of them that no relay has
	// published, or will publish; Left those that a session has locked.
	Matched     int64  `json:"matched"`
	Deleted     int64  `json:"deleted"`
	Unpublished int64  `json:"unpublished"`
	Left        int64  `json:"left"`
	Error       string `json:"error,omitempty"`
}

func (p *process) delete(ctx context.Context, s *session, names []operator.Name) error {
	for _, name := range names {
		if err := s.notWaiting(ctx, name); err != nil {
			return err
		}
	}
	filter := s.cfg.selected.filter
	if s.cfg.selected.dryRun {
		n, err := s.CountWaiting(ctx, filter)
		if err != nil {
			return err
		}
		return p.printResult(s.cfg, deleteView{DryRun: true, Matched: n}, "would delete "+show.Plural(n, "message"))
	}
	ch := &change{
		process: p, cfg: s.cfg, doing: "deleting", notDone: "nothing was deleted", question: func(total int64) string {
			return fmt.Sprintf("Delete %s from %s at %s for good?",
				show.Plural(total, "message"), s.cfg.relay.Table, where(s.conn.Config()))
		},
	}
	agreed, bar := ch.begin(ctx)
	done, failed := s.Delete(ctx, filter, operator.ChangeBatch, agreed, bar)
	view := deleteView{
		Matched: ch.matched, Deleted: done.Unpublished + done.Uncertain, Unpublished: done.Unpublished, Left: done.Left,
	}
	if failed == nil && done.Left > 0 {
		failed = failure.WithHint(
			errors.New(show.LockedText(done.Left)), "cdc-relay explain "+names[0].String()+s.cfg.tableFlag())
	}
	return ch.end(ctx, &view, &view.Error, show.DeletedText(done), view.Deleted, failed)
}

// notWaiting is the error for a message that is not in the outbox, or nil.
func (s *session) notWaiting(ctx context.Context, name operator.Name) error {
	at, err := s.locate(ctx, name, false)
	if err != nil || len(at.waiting) > 0 {
		return err
	}
	table := s.cfg.relay.Table
	switch {
	case len(at.dead) > 0:
		return failure.WithHint(
			failure.NotFound(fmt.Errorf("%s is not in %s: it is a dead letter", name, table)),
			"cdc-relay dead-letter purge "+name.String()+s.cfg.tableFlag())
	case len(at.published) > 0:
		return failure.NotFound(fmt.Errorf("%s is not in %s: it was published at %s",
			name, table, show.Time(at.published[0].PublishedAt)))
	}
	return s.missing(ctx, at)
}
