package show

import (
	"context"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/relay"
)

// Surroundings are the facts outside the row that decide when a message is published.
type Surroundings struct {
	Settings
	slot   slot.Slot
	relays Relays
}

// SurroundingsOf reads what the relays tell, and the slot.
func SurroundingsOf(ctx context.Context, tables *operator.Tables, source *Source) (Surroundings, error) {
	relays, known := source.Ask(ctx, tables)
	slot, err := tables.Slot(ctx, known.Names().Slot)
	return Surroundings{Settings: known, slot: slot, relays: relays}, err
}

// outlook says what happens next, and when if that is known.
type outlook struct {
	text string
	at   *time.Time
}

// outlookOf returns what happens next to a message.
func (s Surroundings) outlookOf(w operator.Message) outlook {
	block := DeadLettersBlock(s.Config)
	switch {
	case w.State == operator.Dead:
		return outlook{text: "nothing, until it is sent again: " + resendCommand(s.Table, w)}
	case w.State == operator.Published:
		return outlook{text: "nothing: it was published"}
	case s.undeleted(w) != nil:
		return outlook{text: "its row is to be deleted, and the database does not let the relay do it. " +
			"The relay tries again every few seconds; after a restart it publishes the message again, marked"}
	case w.State == operator.NewerVersion:
		return outlook{text: fmt.Sprintf("nothing: schema_version %d is for a newer relay; update the relays",
			w.SchemaVersion)}
	case w.DeadOfKey.N > 0 && block:
		return outlook{text: fmt.Sprintf("nothing until the dead letter of its key is dealt with: "+
			"cdc-relay resend --state dead %d%s, or delete",
			w.OldestDeadOfKey, TableFlag(s.Table))}
	case w.First != nil:
		first := s.own(w.First.State, w.First.AvailableAt, s.tries(w.First.Attempts, w.First.MaxAttempts),
			sessionText(w.First.LockedBy, w.Session, w.ReadAt), w.ReadAt)
		return outlook{text: fmt.Sprintf("it waits for %s of its ordering key; the first of them, row %d, %s",
			rowCount(w.Before), w.First.ID, first.text)}
	}
	o := s.own(w.State, w.AvailableAt, s.tries(w.Attempts, w.MaxAttempts),
		sessionText(w.LockedBy, w.Session, w.ReadAt), w.ReadAt)
	o.text = "it " + o.text + s.expiry(w, o.at)
	if w.DeadOfKey.N > 0 { // it would wait for the dead letter with --on-dead-letter block
		o.text += s.byDefault("on-dead-letter")
	}
	return o
}

// Next says what happens next to a message.
func (s Surroundings) Next(m operator.Message) string { return s.outlookOf(m).text }

// expiry returns a remark if the row has expired, or will expire before its turn.
func (s Surroundings) expiry(w operator.Message, turn *time.Time) string {
	then := "a dead letter then"
	if s.OnExpired == relay.OnExpiredDrop {
		then = "deleted then"
	}
	then += s.byDefault("on-expired")
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

// own returns what happens next to a row according to its own state. tries describes the remaining attempts.
func (s Surroundings) own(state operator.State, at *time.Time, tries, lockedBy string, now time.Time) outlook {
	in := func() string { return fmt.Sprintf("at %s, in %s", Time(*at), Duration(at.Sub(now))) }
	switch state {
	case operator.Due:
		within := Duration(s.PollInterval)
		return outlook{
			text: "is due: the next sweep of the leader publishes it, within " + within + " or so" + s.obstacle(),
			at:   at,
		}
	case operator.Retrying:
		return outlook{text: fmt.Sprintf("is tried again %s; %s", in(), tries), at: at}
	case operator.Scheduled:
		return outlook{text: "is scheduled: it is published " + in(), at: at}
	case operator.Locked:
		return outlook{text: fmt.Sprintf("is locked by %s, and is published when that transaction has ended", lockedBy)}
	case operator.Expired:
		return outlook{text: "has an expires_at that has passed"}
	case operator.NewerVersion:
		return outlook{text: "is for a newer relay: update the relays"}
	}
	switch {
	case s.relayed():
		return outlook{text: "is published by the relay that streams as soon as it can" + s.obstacle()}
	case s.Mode == relay.ModePoll:
		within := Duration(s.PollInterval)
		return outlook{text: "is published by the next sweep of the leader, within " + within + " or so" + s.obstacle()}
	}
	return outlook{text: "waits for a relay: none streams. A running relay takes over within " +
		Duration(relay.TakeOver) + " or so, a new one at once: cdc-relay run"}
}

// DeadLettersBlock reports whether a dead letter blocks its ordering key.
func DeadLettersBlock(cfg *relay.Config) bool { return cfg.OnDeadLetter == relay.OnDeadLetterBlock }

// Unlimited is the value of --max-retries for relay.UnlimitedRetries.
const Unlimited = "unlimited"

// tries describes the remaining attempts: from the row's max_attempts, or else from --max-retries.
func (s Surroundings) tries(attempts int, maxAttempts *int) string {
	most, note := s.MaxRetries, ""
	switch {
	case maxAttempts == nil && most == relay.UnlimitedRetries:
		return "if rejected, again without a limit (--max-retries " + Unlimited + ")"
	case maxAttempts == nil:
		note = s.byDefault("max-retries")
	case *maxAttempts == 0:
		return "if rejected, again without a limit (max_attempts 0)"
	default:
		most = *maxAttempts - 1
	}
	if attempts > most {
		return "the last try is the next one" + note
	}
	if left := most - attempts; left > 0 {
		return fmt.Sprintf("if rejected, again up to %d times, then it is a dead letter%s", left, note)
	}
	return "if rejected, it is a dead letter" + note
}

// obstacle returns what keeps a leader from publishing.
func (s Surroundings) obstacle() string {
	leading := s.relays.Leading()
	if len(leading) == 0 {
		return ""
	}
	state := leading[0]
	switch {
	case state.Stopped:
		return "; but publishing has stopped: rows of published messages cannot be deleted"
	case state.hasNoAnswers():
		return "; but its publisher has confirmed or rejected no message for " + Duration(state.silent())
	case state.Phase == publish.Ready.String():
		return ""
	case state.Detail == "":
		return "; but its publisher is " + state.Phase
	}
	return "; but its publisher is " + state.Phase + ": " + OneLine(state.Detail)
}

// undeleted returns what the relay knows of a published row that it cannot delete; nil: it is none.
func (s Surroundings) undeleted(m operator.Message) *relay.AsideRow {
	for _, r := range s.relays.Working() {
		if row := r.undeleted(m.ID); row != nil && m.State.Waits() {
			return row
		}
	}
	return nil
}

// Known is what decides the states of messages besides the tables.
func (s Surroundings) Known() operator.Known { return knownOf(s.Config, s.relays) }

func knownOf(cfg *relay.Config, relays Relays) operator.Known {
	return operator.Known{Block: DeadLettersBlock(cfg), NotDeleted: relays.notDeleted()}
}

// Filter completes a filter. It fails if the state is one that only a relay knows, and no relay has told it.
func (s Surroundings) Filter(f operator.Filter) (operator.Filter, error) {
	if f.Known = s.Known(); f.State == operator.NotDeleted && len(s.relays.Working()) == 0 {
		return f, problem.New(problem.Command(s.Table, "check"),
			"only a relay knows which published rows it cannot delete, and none tells it")
	}
	return f, nil
}

// Told returns messages with the errors that only a relay knows.
func (s Surroundings) Told(found []operator.Message) []operator.Message {
	for i, m := range found {
		if row := s.undeleted(m); row != nil {
			found[i].LastError = &row.Error
		}
	}
	return found
}

func (s Surroundings) relayed() bool { return s.slot.Relayed(s.Table) }

// streaming describes whether a relay streams.
func (s Surroundings) streaming(now time.Time) string {
	taken := s.slot.Taken(s.Table)
	switch {
	case s.relayed():
		owner := viewOfOwner(s.slot)
		return "yes, " + sessionText(owner.PID, owner, now)
	case taken != nil:
		return "no: " + taken.Error()
	case !s.slot.Here:
		return "no: slot " + s.Names().Slot + " is not there"
	}
	return "no: nobody owns slot " + s.Names().Slot
}

// Why says what a key waits for.
func (s Surroundings) Why(k operator.Key) string {
	w := k.First
	if k.Dead != nil {
		w.DeadOfKey, w.OldestDeadOfKey = operator.Count{N: 1, Precision: operator.AtLeast}, *k.Dead
	}
	why := s.Next(w)
	if w.LastError != nil {
		why += "; " + *w.LastError
	}
	return why
}
