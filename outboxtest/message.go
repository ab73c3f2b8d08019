package outboxtest

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Message is an enqueued message. Its fields have the same meaning as those of outbox.NewMessage.
type Message struct {
	// MessageID is zero in a Recorder if the database would choose it.
	MessageID   outbox.UUID
	Exchange    *string
	RoutingKey  string
	OrderingKey string
	// Payload is the JSON byte for byte; nil if the message has a Body. A Body can be empty but not nil.
	Payload json.RawMessage
	Body    []byte
	// Headers and Properties are decoded by encoding/json: numbers are float64.
	Headers, Properties  map[string]any
	RedactedPayload      json.RawMessage
	NotBefore, ExpiresAt time.Time
	MaxAttempts          *int
	CoalesceKey          string
}

// row is a message as stored in the table, in the order of outbox.Table.InsertSQL.
type row struct {
	messageID, exchange, routingKey, orderingKey, payload sql.Null[string]
	body                                                  sql.Null[[]byte]
	headers, properties, redactedPayload                  sql.Null[string]
	notBefore                                             sql.Null[time.Time]
	maxAttempts                                           sql.Null[int]
	expiresAt                                             sql.Null[time.Time]
	coalesceKey                                           sql.Null[string]
}

const columns = `message_id::text, exchange, routing_key, ordering_key, payload::text, payload_bytes, headers::text,
       properties::text, redacted_payload::text, available_at, max_attempts, expires_at, coalesce_key`

// places are the destinations for a driver's Scan.
func (r *row) places() []any {
	return []any{
		&r.messageID, &r.exchange, &r.routingKey, &r.orderingKey, &r.payload, &r.body, &r.headers, &r.properties,
		&r.redactedPayload, &r.notBefore, &r.maxAttempts, &r.expiresAt, &r.coalesceKey,
	}
}

// ofArguments reads the arguments of outbox.NewMessage.Args.
func ofArguments(args []any) (r *row, err error) {
	r = new(row)
	for i, place := range r.places() {
		err = errors.Join(err, place.(sql.Scanner).Scan(args[i]))
	}
	return r, err
}

// message fails if Postgres would reject the row.
func (r *row) message() (m Message, err error) {
	m = Message{
		Exchange:        pointer(r.exchange),
		RoutingKey:      r.routingKey.V,
		OrderingKey:     r.orderingKey.V,
		Payload:         rawJSON(r.payload),
		RedactedPayload: rawJSON(r.redactedPayload),
		Body:            r.body.V,
		NotBefore:       r.notBefore.V,
		MaxAttempts:     pointer(r.maxAttempts),
		ExpiresAt:       r.expiresAt.V,
		CoalesceKey:     r.coalesceKey.V,
	}
	if r.messageID.Valid {
		if m.MessageID, err = outbox.ParseUUID([]byte(r.messageID.V)); err != nil {
			return m, fmt.Errorf("message_id: %w", err)
		}
	}
	for _, column := range []struct {
		name string
		text sql.Null[string]
		into any
	}{
		{"payload", r.payload, new(json.RawMessage)},
		{"redacted_payload", r.redactedPayload, new(json.RawMessage)},
		{"headers", r.headers, &m.Headers},
		{"properties", r.properties, &m.Properties},
	} {
		if !column.text.Valid {
			continue
		}
		if err := json.Unmarshal([]byte(column.text.V), column.into); err != nil {
			return m, fmt.Errorf("%s: %w", column.name, err)
		}
	}
	return m, nil
}

func rawJSON(text sql.Null[string]) json.RawMessage {
	if !text.Valid {
		return nil
	}
	return json.RawMessage(text.V)
}

func pointer[T any](v sql.Null[T]) *T {
	if !v.Valid {
		return nil
	}
	return &v.V
}
