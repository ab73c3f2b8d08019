package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

func (p *process) resendCommand() *cli.Command {
	return &cli.Command{
		Name:  "resend",
		Usage: "send messages again, wherever they are",
		UsageText: "cdc-relay resend ID… [FLAGS]\n" +
			"  cdc-relay resend --state dead|retrying|published ID…|FILTERS|--all [FLAGS]",
		Description: `Sends the messages with these IDs (as explain takes them), wherever they are, or those in
one state. Relays may run meanwhile.

  retrying   rejected messages are due now, with all their attempts again. Those that a session
             has locked are skipped.
  dead       dead letters move back to the outbox and are due at once. Each keeps its id, so
             that messages of one ordering key are published in their old order.
  published  copies of published messages (run --keep-published) go into the outbox, oldest
             first. Each keeps its message_id and carries x-possible-duplicate.

It asks before it sends published messages, and on a terminal also for FILTERS and --all,
unless --yes is given. If an ID is not found, nothing is sent. To fill a new queue, bind it
to an exchange of its own and set that in --to-exchange.

EXAMPLES

  cdc-relay resend 42
  cdc-relay resend --state dead --reason unroutable --routing-key 'orders.*'
  cdc-relay resend --state retrying --all
  cdc-relay resend --state published --newer-than 1d --to-exchange backfill --rate 200`,
		Flags: changeFlags(stateSetting("Send messages in this state:",
			operator.Dead, operator.Retrying, operator.Published), copySettings()...),
		Action: p.with(p.resolveSelecting, p.resend),
	}
}

// copySettings are only for published messages.
func copySettings() []setting {
	name := func(text string) (*string, error) { return &text, checkName(text) }
	id := func(text string) (*int64, error) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q: want the id of a row, such as 42", text)
		}
		return &n, nil
	}
	const only = "With --state published: "
	return []setting{
		settings.FlagOnly(settings.Parsed("to-exchange", "NAME", "",
			only+"send to this exchange instead; '': the default exchange.",
			func(c *config) **string { return &c.selected.copies.Exchange }, name)),
		settings.FlagOnly(settings.Parsed("to-routing-key", "KEY", "", only+"send with this routing key instead.",
			func(c *config) **string { return &c.selected.copies.RoutingKey }, name)),
		settings.FlagOnly(settings.Parsed("rate", "NUMBER", "",
			only+"at most this many messages a second. Default: no limit.",
			func(c *config) *float64 { return &c.selected.copies.PerSecond }, rateUpTo(1_000_000))),
		settings.FlagOnly(settings.Parsed("after-id", "ID", "",
			only+"only messages with a greater id, to continue after an interruption.",
			func(c *config) **int64 { return &c.selected.copies.AfterID }, id)),
	}
}

func (p *process) resend(ctx context.Context, s *session) error {
	switch s.cfg.selected.filter.State {
	case operator.Dead:
		return p.changeRows(ctx, s, operator.Requeue)
	case operator.Retrying:
		return p.changeRows(ctx, s, operator.Retry)
	case operator.Published:
		return p.changeRows(ctx, s, operator.Replay)
	}
	if err := p.askRelays(ctx, s); err != nil {
		return err
	}
	plan, err := p.plan(ctx, s, (*session).resendOf)
	if err != nil {
		return err
	}
	copies := plan.count(operator.Replay)
	ch := &change{process: p, session: s, notDone: "nothing was sent", question: func(total int64) string {
		return fmt.Sprintf("Send %s again, at %s?", show.Plural(total, "published message"), where(s.conn.Config()))
	}}
	return plan.run(ctx, ch, copies, "", operator.Retry, operator.Requeue, operator.Replay)
}

// resendOf decides what sends a message that was located. A message in several tables is resent from the one that it is
// in last: it waits, or it died, or it was published.
func (s *session) resendOf(l located) (v namedView, err error) {
	table, m := s.cfg.relay.Table, l.found[0]
	v = namedOf(m)
	switch m.State {
	case operator.Dead:
		v.Action = operator.Requeue
		v.Text = fmt.Sprintf(
			"Message %s is a dead letter in %s (%s). It moves back to %s, where it is due at once.",
			l.name, table.DeadLetter(), show.Cell(show.ValueOr(m.LastError, m.Reason)), table)
	case operator.Published:
		v.Action = operator.Replay
		v.Text = fmt.Sprintf("Message %s was published at %s. A copy with the same message_id is sent, marked as a "+
			"possible duplicate.", l.name, show.Time(m.PublishedAt))
	default:
		s.resendWaiting(&v, l.name, m)
	}
	switch {
	case m.State != operator.Published && l.count(operator.Published) > 0:
		v.Text += fmt.Sprintf(" It was also published before (%s).", table.Published())
	case m.State.Waits() && l.count(operator.Dead) > 0:
		v.Text += fmt.Sprintf(" It is also in %s.", table.DeadLetter())
	}
	return v, nil
}

// resendWaiting decides for a row of the outbox: only a retry can come earlier.
func (s *session) resendWaiting(v *namedView, name operator.Name, w operator.Message) {
	v.Text = fmt.Sprintf("Message %s is in %s: %s.", name, s.cfg.relay.Table, s.around.Next(w))
	switch w.State {
	case operator.Retrying:
		v.Action = operator.Retry
		v.Text += " It is made due now, with all its attempts."
	case operator.AtOnce, operator.Due:
		v.Text += " There is nothing to resend."
	default:
		v.stuck = true
		v.Text += fmt.Sprintf(" It cannot be resent: cdc-relay explain %s%s", name, s.cfg.tableFlag())
	}
}
