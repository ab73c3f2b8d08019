package show

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Details prints a message of a table for people, line by line.
func Details(g rows, from outbox.Table, m operator.StoredMessage) {
	v := MessageOf(m)
	g.Row("id", fmt.Sprint(m.ID))
	g.Row("message id", m.MessageID.String())
	exchange := "none: the relay's --exchange"
	if m.Exchange != nil {
		exchange = OrElse(Printable(*m.Exchange), "the default exchange")
	}
	g.Row("exchange", exchange)
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
	case v.PayloadShown == payloadRedacted && v.Payload != nil:
		g.Row("payload", Printable(string(v.Payload))+" (redacted)")
	case v.PayloadShown == payloadRedacted || m.IsLarge("payload", "payload_bytes"):
	case v.PayloadShown == payloadHidden && m.PayloadSize.N > operator.MostShown:
		g.Row("payload", sizeText(m.PayloadSize)+"; "+printedBy(from, "payload", m))
	case v.PayloadShown == payloadHidden:
		g.Row("payload", sizeText(m.PayloadSize)+"; --show-payload shows it")
	case m.Binary:
		g.Row("payload", *v.PayloadBase64+" (base64)")
	default:
		g.Row("payload", Printable(string(m.Payload)))
	}
}

// printedBy says how to print a value that is too large to show.
func printedBy(from outbox.Table, column string, m operator.StoredMessage) string {
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

// DeathDetails shows when and why a message of a table became a dead letter.
func DeathDetails(g rows, from outbox.Table, letter operator.DeadMessage) {
	reason, fix := reasonText(letter)
	g.Row("dead since", fmt.Sprintf("%s, %s ago", Time(letter.DeadAt), Duration(letter.ReadAt.Sub(letter.DeadAt))))
	g.Row("reason", reason)
	then := requeueCommand(from, letter)
	if fix != "" {
		then = fix + ", then: " + then
	}
	g.Row("to requeue it", then)
}

// Details shows a row of the outbox.
func (s Surroundings) Details(g rows, w operator.Waiting) {
	g.Row("where", s.Table.String())
	g.Row("state", string(w.State))
	g.Row("next", s.outlookOf(w).text)
	g.Row("a relay streams", s.streaming())
	Details(g, s.Table, w.StoredMessage)
	if w.OrderingKey != nil {
		showPlace(g, w)
	}
}

func showPlace(g rows, w operator.Waiting) {
	place := "the first of its key"
	if f := w.First; f != nil {
		place = fmt.Sprintf("behind %s; the first is row %d (%s, %s)",
			rowCount(w.Before), f.ID, f.State, Plural(int64(f.Attempts), "attempt"))
		if f.LastError != nil {
			place += ": " + Shortened(*f.LastError, 100)
		}
	}
	if w.DeadOfKey.N > 0 {
		place += fmt.Sprintf("; dead letters of its key: %s, first row %d", Count(w.DeadOfKey), w.OldestDeadOfKey)
	}
	g.Row("place", place)
}

// reasonText says why a message became a dead letter. For exhausted retries, that is the last rejection.
func reasonText(m operator.DeadMessage) (says, fix string) {
	code := m.Reason
	if m.Reason == "retries_exhausted" && m.LastError != nil {
		code, _, _ = strings.Cut(*m.LastError, ":")
	}
	text := ""
	if m.LastError != nil {
		text = *m.LastError
	}
	meaning, fix := problem.OfReason(outbox.Reason(code), m.Exchange, text)
	says = Printable(m.Reason)
	if meaning != "" {
		says += ": " + meaning
	}
	return says, fix
}

// rows receives the lines of a table.
type rows interface{ Row(columns ...string) }
