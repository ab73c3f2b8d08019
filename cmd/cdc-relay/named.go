package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// located is where messages of one name are, as operator.Find returns them.
type located struct {
	name  operator.Name
	found []operator.Message
}

func (l located) count(state operator.State) (n int) {
	for _, m := range l.found {
		if m.State == state {
			n++
		}
	}
	return n
}

// missing is the error for messages that are in no table, or nil.
func (s *session) missing(ctx context.Context, all ...located) error {
	var names []string
	for _, l := range all {
		if len(l.found) == 0 {
			names = append(names, l.name.String())
		}
	}
	if len(names) == 0 {
		return nil
	}
	kept, err := s.HasHistory(ctx)
	if err != nil {
		return err
	}
	table := s.cfg.relay.Table
	in := fmt.Sprintf("in none of %s, %s and %s", table, table.DeadLetter(), table.Published())
	if !kept {
		in = fmt.Sprintf("neither in %s nor in %s", table, table.DeadLetter())
	}
	is := "is"
	if len(names) > 1 {
		is = "are"
	}
	missing := fmt.Errorf("%s %s %s. %s", strings.Join(names, ", "), is, in, show.Nowhere(kept))
	return failure.WithHint(failure.NotFound(missing),
		"# check the ID, --table and --database-url; a consumer may have logged the message_id")
}

// ambiguous is the error for a name of several messages, or nil. Ids return after TRUNCATE … RESTART IDENTITY. A copy
// of a published message has a new id, and the same message_id.
func (s *session) ambiguous(l located) error {
	table := s.cfg.relay.Table
	// Under a message_id or task, the messages count that are still to be sent, or else that have died.
	counts := func(m operator.Message) bool {
		first := l.found[0].State
		return l.name.IsRow() || m.State == first || m.State.Waits() && first.Waits()
	}
	var rows []string
	messages, waiting := map[string]bool{}, 0
	for _, m := range l.found {
		at := table
		switch {
		case !counts(m):
			continue
		case m.State.Waits():
			waiting++
		case m.State == operator.Dead:
			at = table.DeadLetter()
		default:
			at = table.Published()
		}
		rows = append(rows, fmt.Sprintf("row %d of %s with message_id %s", m.ID, at, m.MessageID))
		messages[m.MessageID.String()] = true
	}
	advice := "give the id of one row"
	switch {
	case len(messages) > 1 && l.name.IsRow():
		advice = "give one message_id"
	case len(messages) > 1:
	case waiting < 2 && (waiting == 1 || l.count(operator.Dead) < 2):
		return nil
	}
	return fmt.Errorf("%s matches several rows, and nothing was changed: %s. Instead %s",
		l.name, strings.Join(rows, ", "), advice)
}

// namedView is one message that an argument names, and what is done to it.
type namedView struct {
	// State is that of explain.
	State     operator.State `json:"state"`
	ID        int64          `json:"id"`
	MessageID string         `json:"message_id"`
	// Action is a verb, or none.
	Action operator.Verb `json:"action"`
	// Text says so in words; "": it does not need to.
	Text string `json:"text,omitempty"`
	// stuck: the action is none, and no relay sends it soon.
	stuck bool
}

const actNone operator.Verb = "none"

func namedOf(m operator.Message) namedView {
	return namedView{State: m.State, ID: m.ID, MessageID: m.MessageID.String(), Action: actNone}
}

func (v namedView) isSameRow(other namedView) bool { return v.ID == other.ID && v.State == other.State }

// plan is what is done to the messages that the arguments name.
type plan struct {
	messages []namedView
	filters  map[operator.Verb]operator.Filter
}

// plan finds each message, and decides. It changes nothing.
func (p *process) plan(
	ctx context.Context, s *session, decide func(*session, located) (namedView, error),
) (*plan, error) {
	all := &plan{filters: map[operator.Verb]operator.Filter{}}
	var named []located
	for _, name := range s.cfg.selected.filter.Names() {
		found, err := s.Find(ctx, name, s.cfg.selected.filter.Known, false)
		if err != nil {
			return nil, err
		}
		named = append(named, located{name, found})
	}
	if err := s.missing(ctx, named...); err != nil {
		return nil, err
	}
	for _, at := range named {
		if err := s.ambiguous(at); err != nil {
			return nil, err
		}
		one, err := decide(s, at)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(all.messages, one.isSameRow) { // named by its id and its message_id
			continue
		}
		all.messages = append(all.messages, one)
		filter := all.filters[one.Action]
		if m := at.found[0]; m.State.Waits() {
			filter.IDs = append(filter.IDs, m.ID) // no index covers all message_ids
		} else {
			filter.Add(at.name)
		}
		all.filters[one.Action] = filter
		if one.Text != "" && !s.cfg.json {
			fmt.Fprintln(p.terminal.Out, one.Text)
		}
	}
	return all, nil
}

func (l *plan) count(do operator.Verb) (n int64) {
	for _, m := range l.messages {
		if m.Action == do {
			n++
		}
	}
	return n
}

// wanted is how many messages the plan changes.
func (l *plan) wanted() int64 { return int64(len(l.messages)) - l.count(actNone) }

// run does these verbs, in this order, after the question about a number of messages. Would is the text of a dry run.
func (l *plan) run(ctx context.Context, ch *change, asked int64, would string, verbs ...operator.Verb) error {
	dry := ch.cfg.selected.dryRun
	for _, do := range verbs {
		if filter, wanted := l.filters[do]; wanted {
			ch.changes = append(ch.changes, operator.Change{Do: do, Filter: filter, Batch: operator.ChangeBatch})
		}
	}
	if err := ch.agree(ctx, asked); err != nil {
		return err
	}
	ch.done.Matched = l.wanted()
	var said []string
	var failed error
	for _, what := range ch.changes {
		if dry || failed != nil {
			break
		}
		var done operator.Changed
		done, failed = ch.Change(ctx, what, nil, func(int64, int64) {})
		if failed == nil {
			failed = ch.leftBehind(what.Do, done)
		}
		said = append(said, show.ChangedText(what.Do, done))
		ch.done.Done += done.Done
		ch.done.Left += done.Left
		ch.done.Unpublished += done.Unpublished
	}
	stuck := int64(0)
	for _, m := range l.messages {
		if m.stuck {
			stuck++
		}
	}
	text := strings.Join(said, "; ")
	switch left := ch.done.Matched - ch.done.Done; {
	case failed != nil:
	case stuck > 0:
		failed = fmt.Errorf("%s cannot be resent", show.Plural(stuck, "message"))
	case dry:
		text = would
	case left > 0:
		failed = fmt.Errorf("%s changed meanwhile: %s", show.Plural(left, "message"), againForOthers)
	}
	view := viewOf(verbs[0], ch.done)
	view.Messages = l.messages
	return ch.end(ctx, &view, text, failed)
}
