package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

func (p *process) resendCommand() *cli.Command {
	return &cli.Command{
		Name:      "resend",
		Usage:     "send a message again, wherever it is",
		UsageText: "cdc-relay resend ID… [FLAGS]",
		Description: `Finds a message and does what sends it: a rejected message that waits is retried now, a dead
letter is requeued, and of a published message (run --keep-published) a copy is sent. It says
what it found. It asks before it sends a copy, unless --yes is given. ID is the row's id, or
the message_id. If an ID is not found, nothing is sent. For many messages there are retry,
dead-letter requeue and published replay.

EXAMPLES

  cdc-relay resend 42
  cdc-relay resend 5f0c4a86-5e0b-4f0c-9b0e-6b1d3c1f9a52 --dry-run`,
		Flags: asking(describe(
			flags("dry-run", "yes", "format", "on-dead-letter", "http-addr", "database-url", "table", "config"),
			usages{"yes": doNotAsk, "http-addr": askForSettings},
		)),
		Action: p.onEach(p.resend),
	}
}

// onEach is the action of a command that changes the messages that its arguments name.
func (p *process) onEach(do func(context.Context, *session, []operator.Name) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		cfg, arguments, err := p.resolveNaming(c)
		if err != nil {
			return err
		}
		if len(arguments) == 0 {
			return usagef("%s: say which: an ID", commandPath(c))
		}
		var each []operator.Name
		for _, argument := range arguments {
			name, err := operator.ParseName(strings.TrimSpace(argument))
			if err != nil {
				return usagef("%s: %s", commandPath(c), err)
			}
			if !slices.ContainsFunc(each, func(n operator.Name) bool { return n.String() == name.String() }) {
				each = append(each, name)
				cfg.selected.filter.Add(name)
			}
		}
		return p.withSession(c, cfg, func(ctx context.Context, s *session) error { return do(ctx, s, each) })
	}
}

// located is where messages of one name are.
type located struct {
	name      operator.Name
	waiting   []operator.Waiting
	dead      []operator.DeadMessage
	published []operator.PublishedMessage
}

// locate looks for a message in all tables. It leaves out the history if the role may not read it and the message is in
// another table.
func (s *session) locate(ctx context.Context, name operator.Name, payload bool) (l located, err error) {
	l.name = name
	if l.waiting, l.dead, err = s.Explain(ctx, name, payload); err != nil {
		return l, err
	}
	l.published, err = s.PublishedIfKept(ctx, name, payload)
	if len(l.waiting)+len(l.dead) > 0 {
		err = nil
	}
	return l, err
}

// missing is the error for a message that is in no table, or nil.
func (s *session) missing(ctx context.Context, l located) error {
	if len(l.waiting)+len(l.dead)+len(l.published) > 0 {
		return nil
	}
	table := s.cfg.relay.Table
	kept, err := s.HasHistory(ctx)
	switch {
	case err != nil:
		return err
	case kept:
		return failure.WithHint(
			failure.NotFound(fmt.Errorf("%s is in none of %s, %s and %s: it was deleted, was published before the "+
				"history begins, or was never committed", l.name, table, table.DeadLetter(), table.Published())),
			"# look for its message_id at the consumer; check that --table and --database-url are right",
		)
	}
	return failure.WithHint(
		failure.NotFound(fmt.Errorf("%s is neither in %s nor in %s: it was published and deleted, or never committed. "+
			"Published messages are not kept (run --keep-published)", l.name, table, table.DeadLetter())),
		problem.Command(table, "setup", "--keep-published", "168h"),
	)
}

// rows returns the rows in words, and the number of different messages among them.
func (l located) rows(s *session) (all []string, messages int) {
	seen := map[string]bool{}
	add := func(m operator.StoredMessage, where fmt.Stringer) {
		all = append(all, fmt.Sprintf("row %d of %s with message_id %s", m.ID, where, m.MessageID))
		seen[m.MessageID.String()] = true
	}
	for _, w := range l.waiting {
		add(w.StoredMessage, s.cfg.relay.Table)
	}
	for _, letter := range l.dead {
		add(letter.StoredMessage, s.cfg.relay.Table.DeadLetter())
	}
	for _, m := range l.published {
		add(m.StoredMessage, s.cfg.relay.Table.Published())
	}
	return all, len(seen)
}

// ambiguous is the error for a name of several messages, or nil. Ids return after TRUNCATE … RESTART IDENTITY. A replay
// gives the copy a new id, and keeps the message_id.
func (s *session) ambiguous(l located) error {
	rows, messages := l.rows(s)
	advice := "give the id of one row"
	switch {
	case messages > 1:
		advice = "give one message_id"
	case len(l.waiting) < 2 && (len(l.waiting) == 1 || len(l.dead) < 2):
		return nil
	}
	return fmt.Errorf("%s names several rows, and nothing was changed: %s. Instead %s",
		l.name, strings.Join(rows, ", "), advice)
}

// resendView is the JSON output of resend.
type resendView struct {
	DryRun   bool         `json:"dry_run"`
	Messages []resentView `json:"messages"`
	// Retried, Requeued and Replayed count what was done.
	Retried  int64  `json:"retried"`
	Requeued int64  `json:"requeued"`
	Replayed int64  `json:"replayed"`
	Error    string `json:"error,omitempty"`
}

// resentView is one message, and what sends it.
type resentView struct {
	ID        int64  `json:"id"`
	MessageID string `json:"message_id"`
	Where     string `json:"where"` // outbox, dead_letter or published
	// State is that of explain.
	State  operator.State `json:"state"`
	Action string         `json:"action"` // retry, requeue, replay or none
	// Text says so in words.
	Text string `json:"text"`
	// stuck: the action is none, and no relay sends it soon.
	stuck bool
}

const (
	actRetry   = "retry"
	actRequeue = "requeue"
	actReplay  = "replay"
	actNone    = "none"
)

// resendOf decides what sends a message that was located. A message in several tables is resent from the one that it is
// in last: it waits, or it died, or it was published.
func (s *session) resendOf(l located) (v resentView) {
	table, also := s.cfg.relay.Table, ""
	switch {
	case len(l.waiting) > 0:
		v = s.resendWaiting(l.name, l.waiting[0])
	case len(l.dead) > 0:
		letter := l.dead[0]
		v = resentOf(letter.StoredMessage, "dead_letter", "dead", actRequeue)
		v.Text = fmt.Sprintf(
			"Message %s is a dead letter in %s (%s). A requeue moves it back to %s, where it is due at once.",
			l.name, table.DeadLetter(), show.Cell(show.ValueOr(letter.LastError, letter.Reason)), table)
	default:
		m := l.published[0]
		v = resentOf(m.StoredMessage, "published", "published", actReplay)
		v.Text = fmt.Sprintf("Message %s was published at %s. A replay sends a copy with the same message_id, marked "+
			"as a possible duplicate.", l.name, show.Time(m.PublishedAt))
	}
	switch {
	case v.Where != "published" && len(l.published) > 0:
		also = fmt.Sprintf(" It was also published before (%s).", table.Published())
	case v.Where == "outbox" && len(l.dead) > 0:
		also = fmt.Sprintf(" It is also in %s.", table.DeadLetter())
	}
	v.Text += also
	return v
}

func (v resentView) isSameRow(other resentView) bool {
	return v.ID == other.ID && v.Where == other.Where
}

func resentOf(m operator.StoredMessage, where string, state operator.State, action string) resentView {
	return resentView{ID: m.ID, MessageID: m.MessageID.String(), Where: where, State: state, Action: action}
}

// resendWaiting decides for a row of the outbox: only a retry can come earlier.
func (s *session) resendWaiting(name operator.Name, w operator.Waiting) resentView {
	v := resentOf(w.StoredMessage, "outbox", w.State, actNone)
	what, soon := s.waitsFor(w)
	v.Text = fmt.Sprintf("Message %s is in %s: %s.", name, s.cfg.relay.Table, what)
	switch {
	case w.State == operator.Retrying:
		v.Action = actRetry
		v.Text += " A retry makes it due now, with all its attempts."
	case soon:
		v.Text += " There is nothing to do."
	default:
		v.stuck = true
		v.Text += fmt.Sprintf(" It cannot be resent: cdc-relay explain %s%s", name, s.cfg.tableFlag())
	}
	return v
}

// waitsFor says what a row of the outbox waits for, and whether a running relay publishes it without further events.
func (s *session) waitsFor(w operator.Waiting) (what string, soon bool) {
	behind := ""
	switch {
	case w.DeadOfKey.N > 0 && show.DeadLettersBlock(&s.cfg.relay):
		behind = fmt.Sprintf("dead letter %d of its ordering key blocks it", w.OldestDeadOfKey)
	case w.First != nil:
		behind = fmt.Sprintf("it waits behind row %d of its ordering key", w.First.ID)
		if w.First.LastError != nil {
			behind += fmt.Sprintf(" (%s: %s)", w.First.State, show.Cell(*w.First.LastError))
		}
	}
	switch w.State {
	case operator.Retrying:
		why := show.Cell(show.ValueOr(w.LastError, ""))
		what = fmt.Sprintf("it is tried again at %s (%s)", show.Time(*w.AvailableAt), why)
	case operator.Scheduled:
		what = "it is scheduled for " + show.Time(*w.AvailableAt)
	case operator.Unconfirmed:
		what, soon = "it was published, and RabbitMQ has not confirmed it yet", true
	case operator.Locked:
		what, soon = fmt.Sprintf("backend %d has locked it, usually a relay that publishes it now", w.LockedBy), true
	case operator.Expired:
		what = "its expires_at has passed, so that it is not published"
	case operator.NewerVersion:
		what = "its schema_version needs a newer relay"
	default:
		what, soon = "it is due, and a running relay publishes it next", true
	}
	switch {
	case behind == "":
		return what, soon
	case soon && w.State != operator.Locked:
		return behind, false
	}
	return what + ", and " + behind, soon
}

func (p *process) resend(ctx context.Context, s *session, names []operator.Name) error {
	s.cfg = p.asRelay(ctx, s)
	view := resendView{DryRun: s.cfg.selected.dryRun, Messages: []resentView{}}
	plan := resendPlan{filters: map[string]*operator.Filter{}, count: map[string]int64{}}
	for _, name := range names {
		at, err := s.locate(ctx, name, false)
		if err == nil {
			err = errors.Join(s.missing(ctx, at), s.ambiguous(at))
		}
		if err != nil {
			return err
		}
		one := s.resendOf(at)
		if slices.ContainsFunc(view.Messages, one.isSameRow) { // named by its id and its message_id
			continue
		}
		view.Messages = append(view.Messages, one)
		plan.add(one, name)
		if s.cfg.format != formatJSON {
			fmt.Fprintln(p.terminal.Out, one.Text)
		}
	}
	copies := plan.count[actReplay]
	ch := &change{process: p, cfg: s.cfg, notDone: "nothing was sent", harmless: copies == 0}
	ch.question = func(total int64) string {
		return fmt.Sprintf("Send %s again, at %s?", show.Plural(total, "published message"), where(s.conn.Config()))
	}
	text, failed := "", error(nil)
	if !view.DryRun {
		if err := ch.agree(ctx)(copies); err != nil {
			return err
		}
		text, failed = plan.run(ctx, s, &view)
	}
	if failed == nil && plan.stuck > 0 {
		failed = fmt.Errorf("%s cannot be resent", show.Plural(plan.stuck, "message"))
	}
	done := view.Retried + view.Requeued + view.Replayed
	ch.matched = plan.wanted()
	if left := ch.matched - done; failed == nil && left > 0 && !view.DryRun {
		failed = fmt.Errorf("%s changed meanwhile: %s", show.Plural(left, "message"), againForOthers)
	}
	return ch.end(ctx, &view, &view.Error, text, done, failed)
}

// resendPlan has the messages of each action.
type resendPlan struct {
	filters map[string]*operator.Filter
	count   map[string]int64
	stuck   int64
}

func (r *resendPlan) add(one resentView, name operator.Name) {
	if r.filters[one.Action] == nil {
		r.filters[one.Action] = &operator.Filter{}
	}
	r.filters[one.Action].Add(name)
	r.count[one.Action]++
	if one.stuck {
		r.stuck++
	}
}

// wanted is how many messages the plan sends.
func (r *resendPlan) wanted() int64 {
	return r.count[actRetry] + r.count[actRequeue] + r.count[actReplay]
}

// run does what the commands retry, dead-letter requeue and published replay do.
func (r *resendPlan) run(ctx context.Context, s *session, view *resendView) (text string, err error) {
	var said []string
	const batch = operator.ChangeBatch
	unseen := func(int64, int64) {}
	if filter := r.filters[actRetry]; filter != nil {
		var done operator.Retried
		done, err = s.RetryNow(ctx, *filter, batch, false, nil, unseen)
		view.Retried = done.Due
		said = append(said, retriedText(done))
	}
	if filter := r.filters[actRequeue]; filter != nil && err == nil {
		var done operator.Requeued
		done, err = s.Requeue(ctx, *filter, batch, nil, unseen)
		view.Requeued = done.Sent
		said = append(said, requeuedText(done))
		if err == nil {
			err = s.cfg.rejectedByOutbox(done)
		}
	}
	if filter := r.filters[actReplay]; filter != nil && err == nil {
		var done operator.Replayed
		done, err = s.Replay(ctx, *filter, operator.Replay{Batch: batch}, nil, unseen)
		view.Replayed = done.Count
		said = append(said, "replayed "+show.Plural(done.Count, "message"))
	}
	return strings.Join(said, "; "), err
}
