package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// changeFlags are the flags of a command that changes rows, between its state and its own.
func changeFlags(state setting, own ...setting) []cli.Flag {
	picked := slices.Concat([]setting{state}, filterSettings(), []setting{allSetting()}, own)
	common := flags("dry-run", "yes", "json", "on-dead-letter", "database-url", "table", "owner",
		"config")
	return asking(describe(append(asFlags(picked...), common...), usages{"yes": doNotAsk}))
}

// change is a command that changes rows. It asks before, unless --yes is given, and may fail halfway.
type change struct {
	process *process
	*session
	// doing describes the progress bar; "": there is none.
	doing string
	// what names a selected row in the error of a filter that matches nothing; "": that is a normal result.
	what string
	// question is asked about the number of rows; notDone is what the error says after another answer than yes.
	question func(total int64) string
	notDone  string
	// changes are what is done: the question says how many messages wait behind the rows.
	changes []operator.Change
	// would is the text of a dry run.
	would func(total int64) string
	// harmless: the command sends messages that have not arrived. It asks only on a terminal, and not for named
	// messages.
	harmless bool
	// again is the hint of a command that was stopped; "": againForOthers.
	again string

	done operator.Changed
	// refused is the error of agree.
	refused error
}

// agree is an operator.Agreed. The question goes to the standard error: a script may read the standard output.
func (c *change) agree(ctx context.Context, total int64) error {
	tty := c.process.terminal
	if total == 0 || c.cfg.selected.dryRun || c.cfg.yes ||
		c.harmless && (!show.IsTerminal(tty.In) || c.cfg.selected.filter.Named()) {
		return nil
	}
	for _, taken := range c.changes {
		if !taken.LetsGo() {
			continue
		}
		behind, err := c.Behind(ctx, taken)
		if err != nil {
			return err
		}
		fmt.Fprintln(tty.Err, show.BehindText(behind))
	}
	c.refused = tty.Confirm(ctx, tty.Err, c.question(total), c.notDone)
	return c.refused
}

// changedView is the JSON output of resend and delete.
type changedView struct {
	DryRun bool `json:"dry_run"`
	// Messages are those that the arguments name. With --state, they are not listed.
	Messages []namedView `json:"messages,omitempty"`
	// Matched counts the selected messages, Resent, Deleted or Moved (to the dead letters) those that are changed. Left
	// counts the others: a session has locked them, or the outbox rejects them.
	Matched int64  `json:"matched"`
	Resent  *int64 `json:"resent,omitempty"`
	Deleted *int64 `json:"deleted,omitempty"`
	Moved   *int64 `json:"moved,omitempty"`
	Left    int64  `json:"left"`
	// NewIDs counts the dead letters that got a new id, because the old one was taken.
	NewIDs *int64 `json:"new_ids,omitempty"`
	// LastID is that of the last published message that was sent again, for --after-id.
	LastID *int64 `json:"last_id,omitempty"`
	// Unpublished counts the deleted rows of the outbox that no relay has published, or will publish.
	Unpublished *int64 `json:"unpublished,omitempty"`
	Error       string `json:"error,omitempty"`
}

// errStopped is returned if a signal interrupts a change of many rows. Finished batches stay changed.
var errStopped = errors.New("stopped")

const againForOthers = "run it again for the others"

// end prints what was done, and returns why the rest was not.
func (c *change) end(ctx context.Context, view *changedView, text string, failed error) error {
	done := c.done.Done
	if c.refused != nil {
		return c.refused
	}
	if failed == nil && c.done.Matched == 0 && c.what != "" {
		failed = c.process.none(c.cfg, c.what)
	}
	if failed != nil && ctx.Err() != nil {
		stopped := fmt.Errorf("%w, with %s left", errStopped, show.Plural(c.done.Matched-done-c.done.Left, "row"))
		failed = failure.WithHint(stopped, cmp.Or(c.again, againForOthers))
		if done == 0 {
			failed = fmt.Errorf("%w before anything was changed", errStopped)
		}
	}
	view.DryRun, view.Matched, view.Left = c.cfg.selected.dryRun, c.done.Matched, c.done.Left
	if failed != nil {
		view.Error = show.OneLine(failed.Error())
		if done == 0 {
			text = ""
		}
	}
	var err error
	switch {
	case c.cfg.json:
		err = c.process.terminal.JSON(view)
	case text != "":
		_, err = fmt.Fprintln(c.process.terminal.Out, text)
	}
	return cmp.Or(err, failed)
}

// changeRows does what a verb does to the rows that the flags select.
func (p *process) changeRows(ctx context.Context, s *session, do operator.Verb) error {
	picked := operator.Change{
		Do: do, Filter: s.cfg.selected.filter, Batch: operator.ChangeBatch, Copies: s.cfg.selected.copies,
	}
	ch := s.changeOf(p, do)
	ch.changes = []operator.Change{picked}
	var text string
	var failed error
	if s.cfg.selected.dryRun {
		ch.done.Matched, failed = s.Count(ctx, picked)
		text = ch.would(ch.done.Matched)
	} else {
		bar, clearBar := p.terminal.Progress(ch.doing, operator.ChangeBatch)
		ch.done, failed = s.Change(ctx, picked, func(total int64) error { return ch.agree(ctx, total) }, bar)
		clearBar()
		text = show.ChangedText(do, ch.done)
		if failed == nil {
			failed = s.leftBehind(do, ch.done)
		}
	}
	view := viewOf(do, ch.done)
	if view.LastID != nil {
		ch.again = fmt.Sprintf("run it again with --after-id %d for the others", *view.LastID)
	}
	return ch.end(ctx, &view, text, failed)
}

// viewOf has the numbers of a verb.
func viewOf(do operator.Verb, done operator.Changed) (view changedView) {
	switch do {
	case operator.Delete:
		view.Deleted, view.Unpublished = &done.Done, &done.Unpublished
	case operator.Purge:
		view.Deleted = &done.Done
	case operator.Bury:
		view.Moved = &done.Done
	case operator.Requeue:
		view.Resent, view.NewIDs = &done.Done, &done.NewIDs
	default:
		view.Resent = &done.Done
		if do == operator.Replay && done.Done > 0 {
			view.LastID = &done.LastID
		}
	}
	return view
}

// changeOf returns the words of a verb.
func (s *session) changeOf(p *process, do operator.Verb) *change {
	ch := &change{process: p, session: s, doing: "deleting", what: "dead letter", notDone: "nothing was deleted"}
	from, verb, one, then := s.cfg.relay.Table, "delete", "dead letter", ""
	asks := "Delete %s from %s at %s?"
	switch do {
	case operator.Retry:
		ch.doing, ch.what, ch.notDone, ch.harmless = "making due", "waiting retry", "nothing was changed", true
		verb, one, then, asks = "make", "message", " due now", "Make %s of %s at %s due now?"
	case operator.Requeue:
		ch.doing, ch.notDone, ch.harmless = "resending", "nothing was resent", true
		from, verb, asks = from.DeadLetter(), "resend", "Send %s of %s at %s?"
	case operator.Replay:
		ch.doing, ch.what, ch.notDone = "resending", "published message", "nothing was sent"
		from, verb, one, asks = from.Published(), "resend", "message", "Send %s of %s again, at %s?"
		if exchange := s.cfg.selected.copies.Exchange; exchange != nil {
			to := strings.ReplaceAll(strconv.Quote(show.Printable(operator.ExchangeText(exchange))), "%", "%%")
			asks = "Send %s of %s again to exchange " + to + ", at %s?"
		}
	case operator.Purge:
		from = from.DeadLetter()
	case operator.Bury:
		ch.what = strings.TrimSpace(string(s.cfg.selected.filter.State) + " message")
		ch.doing, ch.notDone = "moving", "nothing was moved"
		verb, one, then, asks = "move", ch.what, " to the dead letters", "Move %s of %s at %s to the dead letters?"
	case operator.Delete:
		ch.what = string(s.cfg.selected.filter.State) + " message"
		one, asks = ch.what, "Delete %s from %s at %s for good?"
	}
	ch.would = func(n int64) string { return "would " + verb + " " + show.Plural(n, one) + then }
	ch.question = func(n int64) string {
		return fmt.Sprintf(asks, show.Plural(n, one), from, where(s.conn.Config()))
	}
	return ch
}

// leftBehind is the error of a change that leaves rows behind, or nil.
func (s *session) leftBehind(do operator.Verb, done operator.Changed) error {
	text := show.LeftText(do, done)
	switch {
	case text == "":
		return nil
	case do == operator.Requeue:
		const hint = "fix the rows in %s, or delete them: %s"
		letters := s.cfg.relay.Table.DeadLetter().String()
		return failure.WithHint(errors.New(text),
			fmt.Sprintf(hint, letters, problem.Command(s.cfg.relay.Table, "delete", "--state", "dead")))
	}
	return failure.WithHint(errors.New(text), problem.Command(s.cfg.relay.Table, "list", "--state", "locked"))
}

func (p *process) deleteCommand() *cli.Command {
	return &cli.Command{
		Name:      "delete",
		Usage:     "delete messages that wait or are dead",
		UsageText: "cdc-relay delete ID… [FLAGS]\n  cdc-relay delete --state STATE ID…|FILTERS|--all [FLAGS]",
		Description: `Deletes messages for good: those with these IDs, in the outbox or among the dead letters, or
those in one state. It shows how many, and how many wait behind them, and asks unless --yes is
given. It says whether a relay may have published a waiting message: only one whose time has
not come (scheduled, or in retry) is certainly unpublished. A message that a session has
locked stays.

The next message of an ordering key no longer waits for a deleted one, and outbox_await
reports it as published. With --dead-letter, waiting messages move to the dead letters instead,
so that the key goes on and nothing is lost. To delete old dead letters automatically, use
run --dead-letter-retention.

EXAMPLES

  cdc-relay delete 42
  cdc-relay delete 42 --dead-letter
  cdc-relay delete --state dead --older-than 30d --dry-run
  cdc-relay delete --state scheduled --routing-key 'orders.#'`,
		Flags: changeFlags(stateSetting("Delete messages in this state:", slices.DeleteFunc(operator.States(),
			func(s operator.State) bool {
				return s == operator.Locked || s == operator.NotDeleted || s == operator.Published
			})...), deadLetterSetting()),
		Action: p.with(p.resolveSelecting, p.delete),
	}
}

func (p *process) delete(ctx context.Context, s *session) error {
	bury := s.cfg.selected.bury
	dead := s.cfg.selected.filter.State == operator.Dead
	if dead && bury {
		return usagef("delete: --dead-letter is for waiting messages, and these are dead letters")
	}
	if err := p.askRelays(ctx, s); err != nil {
		return err
	}
	switch {
	case dead:
		return p.changeRows(ctx, s, operator.Purge)
	case s.cfg.selected.filter.State == "":
		return p.deleteNamed(ctx, s)
	case bury:
		return p.changeRows(ctx, s, operator.Bury)
	}
	return p.changeRows(ctx, s, operator.Delete)
}

// askRelays completes the filter by what decides the states of messages besides the tables.
func (p *process) askRelays(ctx context.Context, s *session) error {
	var err error
	s.around, err = show.SurroundingsOf(ctx, s.Tables, p.source(s.cfg))
	s.cfg.selected.filter.Known = s.around.Known()
	return err
}

// deleteNamed deletes the messages that the arguments name.
func (p *process) deleteNamed(ctx context.Context, s *session) error {
	plan, err := p.plan(ctx, s, (*session).deleteOf)
	if err != nil {
		return err
	}
	var rows []string
	table := s.cfg.relay.Table
	if n := plan.count(operator.Delete); n > 0 {
		rows = append(rows, fmt.Sprintf("%s from %s", show.Plural(n, "message"), table))
	}
	if n := plan.count(operator.Purge); n > 0 {
		rows = append(rows, fmt.Sprintf("%s from %s", show.Plural(n, "dead letter"), table.DeadLetter()))
	}
	which := strings.Join(rows, " and ")
	if n := plan.count(operator.Bury); n > 0 {
		ch := s.changeOf(p, operator.Bury)
		ch.what = ""
		return plan.run(ctx, ch, n, ch.would(n), operator.Bury)
	}
	ch := &change{process: p, session: s, notDone: "nothing was deleted", question: func(int64) string {
		return fmt.Sprintf("Delete %s at %s for good?", which, where(s.conn.Config()))
	}}
	return plan.run(ctx, ch, plan.wanted(), "would delete "+which, operator.Delete, operator.Purge)
}

// deleteOf decides what deletes a message that was located.
func (s *session) deleteOf(l located) (v namedView, err error) {
	v = namedOf(l.found[0])
	switch {
	case s.cfg.selected.bury && !v.State.Waits():
		err = fmt.Errorf("%s is not in the outbox: --dead-letter is for waiting messages", l.name)
	case s.cfg.selected.bury:
		v.Action = operator.Bury
	case v.State.Waits():
		v.Action = operator.Delete
	case v.State == operator.Dead:
		v.Action = operator.Purge
	default:
		published := s.cfg.relay.Table.Published()
		err = failure.WithHint(fmt.Errorf("%s was published at %s: run --keep-published deletes whole days of %s",
			l.name, show.Time(l.found[0].PublishedAt), published),
			fmt.Sprintf("DELETE FROM %s WHERE message_id = '%s';  -- in psql", published.SQL(), v.MessageID))
	}
	return v, err
}
