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

// Message is the JSON form of a row. docs/commands.md documents its keys.
type Message struct {
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
	NotShown              NotShown           `json:"not_shown,omitempty"`
}

// NotShown has the columns with a value that is too large to show, and the value's size on disk.
type NotShown map[string]int64

// NotShownOf returns nil if no column is too large.
func NotShownOf(large []operator.Large) NotShown {
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

// MessageOf returns the JSON form of a row.
func MessageOf(m operator.StoredMessage) Message {
	v := Message{
		ID: m.ID, MessageID: m.MessageID, Exchange: m.Exchange, RoutingKey: m.RoutingKey, OrderingKey: m.OrderingKey,
		CreatedAt: JSONTime(m.CreatedAt), AgeSeconds: seconds(m.Age()), ExpiresAt: TimeOrNull(m.ExpiresAt),
		Attempts: m.Attempts, MaxAttempts: m.MaxAttempts, LastError: m.LastError,
		PossibleDuplicate: m.PossibleDuplicate, SchemaVersion: m.SchemaVersion,
		Headers: RawJSON(m.Headers), Properties: RawJSON(m.Properties),
		PayloadBytes: m.PayloadSize.N, PayloadBytesPrecision: m.PayloadSize.Precision,
		PayloadShown: payloadHidden, NotShown: NotShownOf(m.Large),
	}
	if m.Payload == nil {
		v.Headers = RawJSON(celery.HideBody(m.Headers))
	}
	switch {
	case m.IsRedacted:
		v.PayloadShown, v.Payload = payloadRedacted, RawJSON(m.Redacted)
	case m.Payload != nil && m.Binary:
		text := base64.StdEncoding.EncodeToString(m.Payload)
		v.PayloadShown, v.PayloadBase64 = payloadFull, &text
	case m.Payload != nil:
		v.PayloadShown, v.Payload = payloadFull, RawJSON(m.Payload)
	}
	return v
}

// RawJSON returns the text as raw JSON. It returns a string if Go's encoder rejects what Postgres accepted, such as
// JSON nested ten thousand levels deep.
func RawJSON(text []byte) json.RawMessage {
	if text == nil || json.Valid(text) {
		return text
	}
	quoted, err := json.Marshal(string(text))
	if err != nil {
		return nil
	}
	return quoted
}

// DeadLetter is the JSON form of a dead letter.
type DeadLetter struct {
	Message
	FailureReason string    `json:"failure_reason"`
	DeadAt        time.Time `json:"dead_at"`
	RequeueWith   string    `json:"requeue_with"`
}

// DeadLetterOf returns the JSON form of a dead letter of this outbox.
func DeadLetterOf(from outbox.Table, m operator.DeadMessage) DeadLetter {
	return DeadLetter{
		Message: MessageOf(m.StoredMessage), FailureReason: m.Reason, DeadAt: JSONTime(m.DeadAt),
		RequeueWith: requeueCommand(from, m),
	}
}

// requeueCommand returns the command that requeues a dead letter. It uses the message_id, which is unique.
func requeueCommand(from outbox.Table, m operator.DeadMessage) string {
	return "cdc-relay dead-letter requeue " + m.MessageID.String() + TableFlag(from)
}

// TableFlag returns the --table flag that a command for an outbox needs.
func TableFlag(outbox outbox.Table) string {
	if outbox == relay.DefaultConfig().Table {
		return ""
	}
	return " --table '" + outbox.String() + "'"
}

// Published is the JSON form of a published message.
type Published struct {
	Message
	PublishedAt time.Time `json:"published_at"`
}

// PublishedOf returns the JSON form of a message in the history.
func PublishedOf(m operator.PublishedMessage) Published {
	return Published{MessageOf(m.StoredMessage), JSONTime(m.PublishedAt)}
}
