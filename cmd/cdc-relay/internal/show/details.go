package show

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Details prints a message for people, line by line.
func (s Surroundings) Details(g rows, m operator.Message) {
	v, from := MessageOf(m), s.Table
	switch m.State {
	case operator.Dead:
		from = s.Table.DeadLetter()
		g.Row("where", from.String())
	case operator.Published:
		from = s.Table.Published()
		g.Row("where", from.String())
		g.Row("published", fmt.Sprintf("%s, %s ago", Time(m.PublishedAt), Duration(m.ReadAt.Sub(m.PublishedAt))))
	default:
		g.Row("where", from.String())
		g.Row("state", StateText(m.State))
		g.Row("next", s.Next(m))
		if row := s.undeleted(m); row != nil {
			g.Row("why", row.Error)
			g.Row("to fix it", row.Fix)
		}
		g.Row("a relay streams", s.streaming(m.ReadAt))
	}
	g.Row("id", fmt.Sprint(m.ID))
	g.Row("message id", m.MessageID.String())
	g.Row("exchange", OrElse(Printable(operator.ExchangeText(m.Exchange)), "none: the relay's --exchange"))
	g.Row("routing key", Printable(m.RoutingKey))
	if m.OrderingKey != nil {
		g.Row("ordering key", Printable(*m.OrderingKey))
	}
	g.Row("created", fmt.Sprintf("%s, %s ago", Time(m.CreatedAt), Duration(m.Age())))
	if m.ExpiresAt != nil {
		if left := m.ExpiresAt.Sub(m.ReadAt); left > 0 {
			g.Row("expires", fmt.Sprintf("%s, in %s", Time(*m.ExpiresAt), Duration(left)))
		} else {
			g.Row("expired", fmt.Sprintf("%s, %s ago", Time(*m.ExpiresAt), Duration(-left)))
		}
	}
	g.Row("attempts", fmt.Sprint(m.Attempts))
	if m.MaxAttempts != nil {
		g.Row("max attempts", fmt.Sprint(*m.MaxAttempts))
	}
	if m.LastError != nil {
		g.Row("last error", Printable(*m.LastError))
		if meaning, fix := FailureOf(m.LastError, m.Exchange, ""); m.State.Waits() && fix != "" {
			g.Row("to fix it", meaning+": "+fix)
		}
		if m.OrderingKey != nil && m.State == operator.Retrying && m.First == nil {
			g.Row("to let its key go on", "cdc-relay delete "+m.MessageID.String()+" --dead-letter"+TableFlag(s.Table))
		}
	}
	if m.PossibleDuplicate {
		g.Row("mark", outbox.PossibleDuplicateHeader+": it may have been published before")
	}
	for _, part := range []struct {
		name string
		json json.RawMessage
	}{{"headers", v.Headers}, {"properties", v.Properties}} {
		if part.json != nil {
			g.Row(part.name, Printable(string(part.json)))
		}
	}
	for _, l := range m.Large {
		g.Row(l.Column, fmt.Sprintf("%s on disk, not shown; %s", Bytes(l.Stored), printedBy(from, l.Column, m)))
	}
	switch {
	case Body(m) != "":
		g.Row("payload", Body(m))
	case v.PayloadShown == payloadRedacted || m.IsLarge("payload", "payload_bytes"):
	case m.PayloadSize.N > operator.MostShown:
		g.Row("payload", sizeText(m.PayloadSize)+"; "+printedBy(from, "payload", m))
	default:
		g.Row("payload", sizeText(m.PayloadSize)+"; --payload shows it")
	}
	switch {
	case m.State == operator.Dead:
		s.deathDetails(g, m)
	case m.OrderingKey != nil && m.State.Waits():
		showPlace(g, m)
	}
}

// printedBy says how to print a value that is too large to show.
func printedBy(from outbox.Table, column string, m operator.Message) string {
	if column == "payload" && m.Binary {
		column = "payload_bytes"
	}
	return fmt.Sprintf("psql prints it: SELECT %s FROM %s WHERE id = %d AND message_id = '%s'",
		column, from.SQL(), m.ID, m.MessageID)
}

// sizeText formats the size of a body.
func sizeText(size operator.Count) string {
	if size.Precision != operator.Exact {
		return "more than " + Bytes(size.N)
	}
	return Bytes(size.N)
}

// deathDetails shows when and why a message became a dead letter.
func (s Surroundings) deathDetails(g rows, letter operator.Message) {
	reason, fix := reasonText(letter)
	g.Row("dead since", fmt.Sprintf("%s, %s ago", Time(letter.DeadAt), Duration(letter.ReadAt.Sub(letter.DeadAt))))
	g.Row("reason", reason)
	then := resendCommand(s.Table, letter)
	if fix != "" {
		then = fix + ", then: " + then
	}
	g.Row("to resend it", then)
}

func showPlace(g rows, w operator.Message) {
	place := "first in line for key " + Cell(*w.OrderingKey)
	if f := w.First; f != nil {
		place = fmt.Sprintf("behind %s; the first is row %d (%s)", rowCount(w.Before), f.ID,
			strings.Join(compact(StateText(f.State), Shortened(ValueOr(f.LastError, ""), 100)), ", "))
	}
	if w.DeadOfKey.N > 0 {
		place += fmt.Sprintf("; dead letters of its key: %s, first row %d", Count(w.DeadOfKey), w.OldestDeadOfKey)
	}
	g.Row("place", place)
}

// FailureOf explains a failure, and says what to do first. Its code is at the start of the last error; without one, it
// is the reason of a dead letter. A nil exchange is the relay's own.
func FailureOf(lastError, exchange *string, reason string) (meaning, fix string) {
	text := ValueOr(lastError, "")
	code, _, _ := strings.Cut(OrElse(text, reason), ":")
	return problem.OfReason(outbox.Reason(code), exchange, text)
}

// GroupFailure is FailureOf for a group.
func GroupFailure(g operator.Group) (meaning, fix string) {
	exchange := &g.Exchange
	switch g.Exchange {
	case "":
		exchange = nil
	case operator.DefaultExchange:
		exchange = new(string)
	}
	meaning, fix = FailureOf(&g.Example, exchange, g.Reason)
	if g.Keys > 1 {
		several := strings.NewReplacer("this routing key", "these routing keys")
		meaning, fix = several.Replace(meaning), several.Replace(fix)
	}
	return meaning, fix
}

// reasonText says why a message became a dead letter.
func reasonText(m operator.Message) (says, fix string) {
	meaning, fix := FailureOf(m.LastError, m.Exchange, m.Reason)
	says = strings.Join(compact(Reason(m), meaning), ": ")
	if m.Reason == string(outbox.ReasonByHand) && m.LastError != nil {
		says += "; a person moved it here"
	}
	return says, fix
}

// rows receives the lines of a table.
type rows interface{ Row(columns ...string) }
