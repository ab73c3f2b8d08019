package outboxtest

import (
	"encoding/json"
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

// row is a message as stored in the table, in the order of outbox.Table.InsertSQL; nil is null.
type row struct {
	messageID, exchange, routingKey, orderingKey, payload *string
	body                                                  []byte
	headers, properties, redactedPayload                  *string
	notBefore                                             *time.Time
	maxAttempts                                           *int
	expiresAt                                             *time.Time
	coalesceKey                                           *string
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
func ofArguments(args []any) *row {
	body, _ := args[5].([]byte)
	return &row{
		argument[string](args[0]), argument[string](args[1]), argument[string](args[2]), argument[string](args[3]),
		argument[string](args[4]), body, argument[string](args[6]), argument[string](args[7]),
		argument[string](args[8]), argument[time.Time](args[9]), argument[int](args[10]),
		argument[time.Time](args[11]), argument[string](args[12]),
	}
}

func argument[T any](arg any) *T {
	if v, ok := arg.(T); ok {
		return &v
	}
	return nil
}

// message fails if Postgres would reject the row.
func (r *row) message() (m Message, err error) {
	m = Message{
		Exchange:    r.exchange,
		RoutingKey:  or(r.routingKey),
		OrderingKey: or(r.orderingKey),
		Body:        r.body,
		NotBefore:   or(r.notBefore),
		MaxAttempts: r.maxAttempts,
		ExpiresAt:   or(r.expiresAt),
		CoalesceKey: or(r.coalesceKey),
	}
	if r.messageID != nil {
		if m.MessageID, err = outbox.ParseUUID([]byte(*r.messageID)); err != nil {
			return m, fmt.Errorf("message_id: %w", err)
		}
	}
	m.Payload, m.RedactedPayload = rawJSON(r.payload), rawJSON(r.redactedPayload)
	for _, column := range []struct {
		name string
		text *string
		into any
	}{
		{"payload", r.payload, new(json.RawMessage)},
		{"redacted_payload", r.redactedPayload, new(json.RawMessage)},
		{"headers", r.headers, &m.Headers},
		{"properties", r.properties, &m.Properties},
	} {
		if column.text == nil {
			continue
		}
		if err := json.Unmarshal([]byte(*column.text), column.into); err != nil {
			return m, fmt.Errorf("%s: %w", column.name, err)
		}
	}
	return m, nil
}

func rawJSON(text *string) json.RawMessage {
	if text == nil {
		return nil
	}
	return json.RawMessage(*text)
}

func or[T any](v *T) (zero T) {
	if v == nil {
		return zero
	}
	return *v
}
