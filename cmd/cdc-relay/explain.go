package main

import (
	"context"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/relay"
)

func (p *process) explainCommand() *cli.Command {
	return &cli.Command{
		Name:      "explain",
		Usage:     "show where one message is, and what happens to it next",
		UsageText: "cdc-relay explain ID [FLAGS]",
		Description: `Shows where a message is, what it waits for, and what happens next and when. For a dead
letter it shows the reason and the command that requeues it. ID is the row's id, or the
message_id, which has no index and needs a scan of the table. If no message is found, the
exit code is 3: it was delivered and deleted, or never committed.

Give explain the same --on-dead-letter, --on-expired and --max-retries as the relays.`,
		Flags: describe(flags("show-payload", "format", "on-dead-letter", "on-expired", "max-retries", "poll-interval", "stale-timeout", "mode",
			"http-addr", "database-url", "table", "slot", "shard", "config"), usages{"http-addr": askForState}),
		Action: p.onNamed(p.explain),
	}
}

func (p *process) explain(ctx context.Context, d *desk, name operator.Name) error {
	waiting, dead, err := d.Explain(ctx, name, d.cfg.looking.showPayload)
	if err != nil {
		return err
	}
	around, err := surroundingsOf(ctx, d)
	if err != nil {
		return err
	}
	published, err := d.publishedAs(ctx, name)
	if err != nil && len(waiting)+len(dead) == 0 { // the role may be allowed to read only the outbox
		return err
	}
	if d.cfg.format == formatJSON {
		err = p.writeJSON(around.view(waiting, dead, published))
	} else {
		err = p.showExplained(around, waiting, dead, published)
	}
	if err == nil && len(waiting)+len(dead)+len(published) == 0 {
		return hinted{
			notFoundError{fmt.Errorf("%s is neither in %s nor in %s: it was delivered and deleted, or never committed", name, d.cfg.relay.Table, d.cfg.relay.Table.DeadLetter())},
			"# look for its message_id at the consumer; check that --table and --database-url are right",
		}
	}
	return err
}

// publishedAs searches the history, if there is one.
func (d *desk) publishedAs(ctx context.Context, name operator.Name) ([]operator.PublishedMessage, error) {
	if has, err := d.HasHistory(ctx); err != nil || !has {
		return nil, err
	}
	return d.Published(ctx, name, d.cfg.looking.showPayload)
}

// askRelay queries the relay at --http-addr. It returns nil if none answers.
func askRelay(ctx context.Context, cfg *config) *reading {
	live := newLiveRelay(cfg.httpAddr)
	if live == nil {
		return nil
	}
	r, err := live.read(ctx)
	if err != nil {
		return nil // a relay may run elsewhere: the slot shows it
	}
	return r
}

// surroundings are the facts outside the row that decide when a message is published.
type surroundings struct {
	cfg   *config
	slot  slot.Slot
	relay *reading
}

func surroundingsOf(ctx context.Context, d *desk) (surroundings, error) {
	slot, err := d.Slot(ctx, d.cfg.names().Slot)
	return surroundings{cfg: d.cfg, slot: slot, relay: askRelay(ctx, d.cfg)}, err
}

// outlook says what happens next, and when if that is known.
type outlook struct {
	text string
	at   *time.Time
}

// outlookOf returns what happens next to a row of the outbox.
func (s surroundings) outlookOf(w operator.Waiting) outlook {
	block := s.cfg.relay.OnDeadLetter == relay.OnDeadLetterBlock
	switch {
	case w.State == operator.NewerVersion:
		return outlook{text: fmt.Sprintf("nothing: schema_version %d is for a newer relay; update the relays", w.SchemaVersion)}
	case w.DeadOfKey.N > 0 && block:
		return outlook{text: fmt.Sprintf("nothing until the dead letter of its key is dealt with: cdc-relay dead-letter requeue --id %d%s, or purge",
			w.OldestDeadOfKey, s.cfg.tableFlag())}
	case w.First != nil:
		first := s.own(w.First.State, w.First.AvailableAt, s.tries(w.First.Attempts, w.First.MaxAttempts), sessionText(w.First.LockedBy, w.Session, w.ReadAt), w.ReadAt)
		return outlook{text: fmt.Sprintf("it waits for %s of its ordering key; the first of them, row %d, %s", countRows(w.Before), w.First.ID, first.text)}
	}
	o := s.own(w.State, w.AvailableAt, s.tries(w.Attempts, w.MaxAttempts), sessionText(w.LockedBy, w.Session, w.ReadAt), w.ReadAt)
	o.text = "it " + o.text + s.expiry(w, o.at)
	return o
}

// expiry returns a remark if the row has expired, or will expire before its turn.
func (s surroundings) expiry(w operator.Waiting, turn *time.Time) string {
	then := "a dead letter then"
	if s.cfg.relay.OnExpired == relay.OnExpiredDrop {
		then = "deleted then"
	}
	switch {
	case w.ExpiresAt == nil:
		return ""
	case !w.ExpiresAt.After(w.ReadAt):
		return "; it has expired, and is not published but " + then
	case turn != nil && !w.ExpiresAt.After(*turn):
		return "; it will have expired, and is not published but " + then
	}
	return ""
}

func countRows(c operator.Count) string {
	if c.N == 1 && c.Precision == operator.Exact {
		return "1 row"
	}
	return countOf(c) + " rows"
}

// sessionText describes the session that has locked a row.
func sessionText(pid int32, s *operator.Session, now time.Time) string {
	text := fmt.Sprintf("backend %d", pid)
	switch {
	case s == nil:
		return text
	case s.Application != nil && *s.Application != "":
		text = printable(*s.Application) + ", " + text
	}
	if s.Client != nil {
		text += " from " + *s.Client
	}
	if s.Since != nil {
		text += ", for " + durationText(max(now.Sub(*s.Since), 0))
	}
	return text
}

// own returns what happens next to a row according to its own state. tries describes the remaining attempts.
func (s surroundings) own(state operator.State, at *time.Time, tries, lockedBy string, now time.Time) outlook {
	in := func() string { return fmt.Sprintf("at %s, in %s", timeText(*at), durationText(at.Sub(now))) }
	switch state {
	case operator.Due:
		return outlook{text: "is due: the next sweep of a relay takes it, within " + durationText(s.cfg.relay.PollInterval) + " or so" + s.obstacle(), at: at}
	case operator.Retrying:
		return outlook{text: fmt.Sprintf("is tried again %s; %s", in(), tries), at: at}
	case operator.Scheduled:
		return outlook{text: "is scheduled: it leaves " + in(), at: at}
	case operator.Unconfirmed:
		return outlook{text: "was published, and its confirm is late; without one it is published again " + in(), at: at}
	case operator.Locked:
		return outlook{text: fmt.Sprintf("is locked by %s: a relay publishes it now, or another session works on it", lockedBy)}
	case operator.Expired:
		return outlook{text: "has an expires_at that has passed"}
	case operator.NewerVersion:
		return outlook{text: "is for a newer relay: update the relays"}
	}
	switch {
	case s.relayed():
		return outlook{text: "is published by the relay that streams as soon as it can" + s.obstacle()}
	case s.cfg.relay.Mode == relay.ModePoll:
		return outlook{text: "is published by the next sweep of a relay, within " + durationText(s.cfg.relay.PollInterval) + " or so" + s.obstacle()}
	}
	return outlook{text: "waits for a relay: none streams. A running relay takes it within " + durationText(s.cfg.relay.StaleTimeout) +
		" or so, a new one at once: cdc-relay run"}
}

// tries describes the remaining attempts: from the row's max_attempts, or else from --max-retries of this command,
// which may differ from the relay's.
func (s surroundings) tries(attempts int, maxAttempts *int) string {
	most := s.cfg.relay.MaxRetries
	switch {
	case maxAttempts == nil:
	case *maxAttempts == 0:
		return "if rejected, again without a limit (max_attempts 0)"
	default:
		most = *maxAttempts - 1
	}
	if attempts > most {
		return "the last try is the next one"
	}
	if left := most - attempts; left > 0 {
		return fmt.Sprintf("if rejected, again up to %d times, then it is a dead letter", left)
	}
	return "if rejected, it is a dead letter"
}

// obstacle returns what keeps the relay at --http-addr from publishing.
func (s surroundings) obstacle() string {
	if s.relay == nil {
		return ""
	}
	phase := s.relay.label("cdc_relay_publisher_phase", "phase")
	if phase == "" || phase == "ready" {
		return ""
	}
	return "; but its publisher is " + phase + ": look at RabbitMQ"
}

func (s surroundings) relayed() bool { return s.slot.Relayed(s.cfg.relay.Table) }

// streaming describes whether a relay streams.
func (s surroundings) streaming() string {
	switch {
	case s.relayed():
		owner := s.slot.Owner()
		text := fmt.Sprintf("yes, backend %d", owner.PID)
		if owner.Client != nil {
			text += " from " + *owner.Client
		}
		return text
	case s.slot.Taken(s.cfg.relay.Table) != nil:
		return "no: " + s.slot.Taken(s.cfg.relay.Table).Error()
	case !s.slot.Here:
		return "no: slot " + s.cfg.names().Slot + " is not there"
	}
	return "no: nobody owns slot " + s.cfg.names().Slot
}
