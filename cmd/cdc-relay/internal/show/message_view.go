package show

import (
	"encoding/base64"
	"encoding/json"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/internal/celery"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay"
)

// Message is the JSON form of a message, wherever it is. docs/commands.md documents its keys.
type Message struct {
	State operator.State `json:"state"`
	// FailureReason and DeadAt are those of a dead letter, PublishedAt that of a published message.
	FailureReason *string    `json:"failure_reason,omitempty"`
	DeadAt        *time.Time `json:"dead_at,omitempty"`
	PublishedAt   *time.Time `json:"published_at,omitempty"`
	// AvailableAt and LockedBy are of a row of the outbox.
	AvailableAt *time.Time `json:"available_at"`
	LockedBy    int32      `json:"locked_by,omitempty"`

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
	// PayloadShown is full, redacted or hidden (see --payload).
	PayloadShown string `json:"payload_shown"`
	// PayloadBytes is at_least for a large body that is stored compressed, else exact.
	PayloadBytes          int64              `json:"payload_bytes"`
	PayloadBytesPrecision operator.Precision `json:"payload_bytes_precision"`
	Payload               json.RawMessage    `json:"payload"`
	PayloadBase64         *string            `json:"payload_base64"`
	NotShown              NotShown           `json:"not_shown,omitempty"`
}

// NotShown has the columns with a value that is too large to show, and the value's size on disk.
type NotShown map[string]int64

// notShownOf returns nil if no column is too large.
func notShownOf(large []operator.Large) NotShown {
	var columns NotShown
	for _, l := range large {
		if columns == nil {
			columns = NotShown{}
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

// MessageOf returns the JSON form of a message.
func MessageOf(m operator.Message) Message {
	v := Message{
		State: m.State, AvailableAt: timeOrNull(m.AvailableAt), LockedBy: m.LockedBy,
		ID: m.ID, MessageID: m.MessageID, Exchange: m.Exchange, RoutingKey: m.RoutingKey, OrderingKey: m.OrderingKey,
		CreatedAt: jsonTime(m.CreatedAt), AgeSeconds: seconds(m.Age()), ExpiresAt: timeOrNull(m.ExpiresAt),
		Attempts: m.Attempts, MaxAttempts: m.MaxAttempts, LastError: m.LastError,
		PossibleDuplicate: m.PossibleDuplicate, SchemaVersion: m.SchemaVersion,
		Headers: rawJSON(m.Headers), Properties: rawJSON(m.Properties),
		PayloadBytes: m.PayloadSize.N, PayloadBytesPrecision: m.PayloadSize.Precision,
		PayloadShown: payloadHidden, NotShown: notShownOf(m.Large),
	}
	switch m.State {
	case operator.Dead:
		v.FailureReason, v.DeadAt = &m.Reason, timeOrNull(&m.DeadAt)
	case operator.Published:
		v.PublishedAt = timeOrNull(&m.PublishedAt)
	}
	if m.Payload == nil {
		v.Headers = rawJSON(celery.HideBody(m.Headers))
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

// Body is the body of a message for people; "": it is not shown.
func Body(m operator.Message) string {
	switch v := MessageOf(m); {
	case v.PayloadShown == payloadRedacted && v.Payload != nil:
		return Printable(string(v.Payload)) + " (redacted)"
	case v.PayloadBase64 != nil:
		return *v.PayloadBase64 + " (base64)"
	}
	return Printable(string(m.Payload))
}

// BodyColumn is the body of a message, or its size if it is too large to show.
func BodyColumn() Column[operator.Message] {
	return column("Payload", "", func(m operator.Message) string { return OrElse(Body(m), sizeText(m.PayloadSize)) })
}

// resendCommand returns the command that sends a dead letter again. It uses the message_id, which is unique.
func resendCommand(from outbox.Table, m operator.Message) string {
	return "cdc-relay resend " + m.MessageID.String() + TableFlag(from)
}

// TableFlag returns the --table flag that a command for an outbox needs.
func TableFlag(outbox outbox.Table) string {
	if outbox == relay.DefaultConfig().Table {
		return ""
	}
	return " --table '" + outbox.String() + "'"
}
