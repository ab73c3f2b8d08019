package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// messageView is the JSON form of a row. docs/commands.md documents its keys.
type messageView struct {
	ID                int64           `json:"id"`
	MessageID         outbox.UUID     `json:"message_id"`
	Exchange          *string         `json:"exchange"`
	RoutingKey        string          `json:"routing_key"`
	OrderingKey       *string         `json:"ordering_key"`
	CreatedAt         time.Time       `json:"created_at"`
	AgeSeconds        float64         `json:"age_seconds"`
	ExpiresAt         *time.Time      `json:"expires_at"`
	Attempts          int             `json:"attempts"`
	MaxAttempts       *int            `json:"max_attempts"`
	LastError         *string         `json:"last_error"`
	PossibleDuplicate bool            `json:"possible_duplicate"`
	SchemaVersion     int             `json:"schema_version"`
	Headers           json.RawMessage `json:"headers"`
	Properties        json.RawMessage `json:"properties"`
	// PayloadShown is full, redacted or hidden (see --show-payload).
	PayloadShown string `json:"payload_shown"`
	// PayloadBytes is at_least for a large body that is stored compressed, else exact.
	PayloadBytes          int64              `json:"payload_bytes"`
	PayloadBytesPrecision operator.Precision `json:"payload_bytes_precision"`
	Payload               json.RawMessage    `json:"payload"`
	PayloadBase64         *string            `json:"payload_base64"`
	NotShown              notShown           `json:"not_shown,omitempty"`
}

// notShown has the columns with a value that is too large to show, and the value's size on disk.
type notShown map[string]int64

func notShownOf(large []operator.Large) notShown {
	var columns notShown
	for _, l := range large {
		if columns == nil {
			columns = notShown{}
		}
		columns[l.Column] = l.Stored
	}
	return columns
}

const (
	payloadFull     = "full"
	payloadRedacted = "redacted"
	payloadHidden   = "hidden"
)

func viewOf(m operator.StoredMessage) messageView {
	v := messageView{
		ID: m.ID, MessageID: m.MessageID, Exchange: m.Exchange, RoutingKey: m.RoutingKey, OrderingKey: m.OrderingKey,
		CreatedAt: jsonTime(m.CreatedAt), AgeSeconds: seconds(m.Age()), ExpiresAt: orNull(m.ExpiresAt), Attempts: m.Attempts, MaxAttempts: m.MaxAttempts, LastError: m.LastError,
		PossibleDuplicate: m.PossibleDuplicate, SchemaVersion: m.SchemaVersion,
		Headers: rawJSON(m.Headers), Properties: rawJSON(m.Properties), PayloadBytes: m.PayloadSize.N, PayloadBytesPrecision: m.PayloadSize.Precision,
		PayloadShown: payloadHidden, NotShown: notShownOf(m.Large),
	}
	if m.Payload == nil {
		v.Headers = rawJSON(outbox.HideBody(m.Headers))
	}
	switch {
	case m.IsRedacted:
		v.PayloadShown, v.Payload = payloadRedacted, rawJSON(m.Redacted)
	case m.Payload != nil && m.Binary:
		text := base64.StdEncoding.EncodeToString(m.Payload)
		v.PayloadShown, v.PayloadBase64 = payloadFull, &text
	case m.Payload != nil:
		v.PayloadShown, v.Payload = payloadFull, rawJSON(m.Payload)
	}
	return v
}

// rawJSON returns the text as raw JSON. It returns a string if Go's encoder rejects what Postgres accepted, such as
// JSON nested ten thousand levels deep.
func rawJSON(text []byte) json.RawMessage {
	if text == nil || json.Valid(text) {
		return text
	}
	quoted, err := json.Marshal(string(text))
	if err != nil {
		return nil
	}
	return quoted
}

// deadView is the JSON form of a dead letter.
type deadView struct {
	messageView
	FailureReason string    `json:"failure_reason"`
	DeadAt        time.Time `json:"dead_at"`
	RequeueWith   string    `json:"requeue_with"`
}

func (c *config) deadViewOf(m operator.DeadMessage) deadView {
	return deadView{messageView: viewOf(m.StoredMessage), FailureReason: m.Reason, DeadAt: jsonTime(m.DeadAt), RequeueWith: c.requeueCommand(m)}
}

// requeueCommand returns the command that requeues a dead letter. It uses the message_id, which is unique.
func (c *config) requeueCommand(m operator.DeadMessage) string {
	return "cdc-relay dead-letter requeue " + m.MessageID.String() + c.tableFlag()
}

// tableFlag returns the --table flag that a command for this table needs.
func (c *config) tableFlag() string {
	if c.relay.Table == defaultConfig().relay.Table {
		return ""
	}
	return " --table '" + c.relay.Table.String() + "'"
}

// details prints a message of a table for people, line by line.
func (p *process) details(g rows, from outbox.Table, m operator.StoredMessage) {
	v := viewOf(m)
	g.row("id", fmt.Sprint(m.ID))
	g.row("message id", m.MessageID.String())
	exchange := "none: the relay's --exchange"
	if m.Exchange != nil {
		exchange = orWord(printable(*m.Exchange), "the default exchange")
	}
	g.row("exchange", exchange)
	g.row("routing key", printable(m.RoutingKey))
	if m.OrderingKey != nil {
		g.row("ordering key", printable(*m.OrderingKey))
	}
	g.row("created", fmt.Sprintf("%s, %s ago", timeText(m.CreatedAt), durationText(m.Age())))
	if m.ExpiresAt != nil {
		if left := m.ExpiresAt.Sub(m.ReadAt); left > 0 {
			g.row("expires", fmt.Sprintf("%s, in %s", timeText(*m.ExpiresAt), durationText(left)))
		} else {
			g.row("expired", fmt.Sprintf("%s, %s ago", timeText(*m.ExpiresAt), durationText(-left)))
		}
	}
	g.row("attempts", fmt.Sprint(m.Attempts))
	if m.MaxAttempts != nil {
		g.row("max attempts", fmt.Sprint(*m.MaxAttempts))
	}
	if m.LastError != nil {
		g.row("last error", printable(*m.LastError))
	}
	if m.PossibleDuplicate {
		g.row("mark", outbox.PossibleDuplicateHeader+": it may have been published before")
	}
	for _, part := range []struct {
		name string
		json json.RawMessage
	}{{"headers", v.Headers}, {"properties", v.Properties}} {
		if part.json != nil {
			g.row(part.name, printable(string(part.json)))
		}
	}
	for _, l := range m.Large {
		g.row(l.Column, fmt.Sprintf("%s on disk, not shown; %s", bytesText(l.Stored), printedBy(from, l.Column, m)))
	}
	switch {
	case v.PayloadShown == payloadRedacted && v.Payload != nil:
		g.row("payload", printable(string(v.Payload))+" (redacted)")
	case v.PayloadShown == payloadRedacted || m.IsLarge("payload", "payload_bytes"):
	case v.PayloadShown == payloadHidden && m.PayloadSize.N > operator.MostShown:
		g.row("payload", sizeText(m.PayloadSize)+"; "+printedBy(from, "payload", m))
	case v.PayloadShown == payloadHidden:
		g.row("payload", sizeText(m.PayloadSize)+"; --show-payload shows it")
	case m.Binary:
		g.row("payload", *v.PayloadBase64+" (base64)")
	default:
		g.row("payload", printable(string(m.Payload)))
	}
}

// printedBy says how to print a value that is too large to show.
func printedBy(from outbox.Table, column string, m operator.StoredMessage) string {
	if column == "payload" && m.Binary {
		column = "payload_bytes"
	}
	return fmt.Sprintf("psql prints it: SELECT %s FROM %s WHERE id = %d AND message_id = '%s'", column, from.SQL(), m.ID, m.MessageID)
}

// sizeText formats the size of a body.
func sizeText(size operator.Count) string {
	if size.Precision != operator.Exact {
		return "more than " + bytesText(size.N)
	}
	return bytesText(size.N)
}

func orWord(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
