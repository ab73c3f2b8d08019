package outbox

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// NewMessage is a message to enqueue. Set RoutingKey, and Payload or Body; the other fields are optional.
type NewMessage struct {
	// MessageID lets the consumer detect duplicates; NewMessageID returns one. Zero: the database assigns one.
	MessageID UUID
	// Exchange is nil for the relay's default exchange; "" is AMQP's default exchange.
	Exchange   *string
	RoutingKey string
	// OrderingKey: messages of one key leave one at a time, in the order in which they were enqueued. Empty: no order.
	OrderingKey string
	// Payload is the body as JSON. A json.RawMessage or []byte is sent unchanged; other values are marshalled.
	Payload any
	// Body is a binary body, instead of Payload.
	Body []byte
	// Headers are AMQP headers: strings, numbers, booleans, and lists and maps of them.
	Headers map[string]any
	// Properties are AMQP properties by name: content_type, priority, correlation_id, expiration and so on.
	Properties map[string]any
	// RedactedPayload is shown to people and tools instead of the payload.
	RedactedPayload any
	// NotBefore is the earliest time to publish the message. Zero: at once.
	NotBefore time.Time
	// MaxAttempts is how many rejections make the message a dead letter, from 0 (no limit) to 32767. Nil: the relay's
	// MaxRetries decides.
	MaxAttempts *int
	// ExpiresAt is the time from which on the message is not published, by the database's clock. Zero: never.
	ExpiresAt time.Time
	// CoalesceKey: of waiting messages with the same coalesce and ordering key only the newest is published. Empty: all
	// are.
	CoalesceKey string
}

// NewMessageID returns a random UUID (version 4).
func NewMessageID() UUID {
	var u UUID
	rand.Read(u[:]) //nolint:errcheck // never fails
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return u
}

// PgxExecer is a pgx.Tx, a pgx.Conn or a pgxpool.Pool.
type PgxExecer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// SQLExecer is a *sql.Tx, a *sql.DB or a *sql.Conn of database/sql.
type SQLExecer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Enqueue inserts messages in a pgx transaction. They are published after it commits, and never if it rolls back. The
// role needs only INSERT on the table.
func (t Table) Enqueue(ctx context.Context, tx PgxExecer, messages ...NewMessage) error {
	return t.enqueue(messages, func(statement string, args []any) error {
		_, err := tx.Exec(ctx, statement, args...)
		return err
	})
}

// EnqueueSQL is Enqueue in a transaction of database/sql.
func (t Table) EnqueueSQL(ctx context.Context, tx SQLExecer, messages ...NewMessage) error {
	return t.enqueue(messages, func(statement string, args []any) error {
		_, err := tx.ExecContext(ctx, statement, args...)
		return err
	})
}

func (t Table) enqueue(messages []NewMessage, exec func(statement string, args []any) error) error {
	statement := t.InsertSQL()
	for i := range messages {
		args, err := messages[i].Args()
		if err == nil {
			err = exec(statement, args)
		}
		if err != nil {
			return fmt.Errorf("enqueue message %q: %w", messages[i].RoutingKey, err)
		}
	}
	return nil
}

// InsertSQL returns the statement of Enqueue, for callers that batch it; NewMessage.Args returns its arguments. It
// returns no rows, because RETURNING needs more than INSERT.
func (t Table) InsertSQL() string {
	return "INSERT INTO " + t.SQL() + ` (message_id, exchange, routing_key, ordering_key, payload, payload_bytes,
  headers, properties, redacted_payload, available_at, max_attempts, expires_at, coalesce_key)
VALUES (coalesce($1::text::uuid, gen_random_uuid()), $2::text, $3::text, $4::text, $5::text::json, $6::bytea,
  $7::text::jsonb, $8::text::jsonb, $9::text::json, $10::timestamptz, $11::smallint, $12::timestamptz, $13::text)`
}

// Args returns the arguments of InsertSQL, in types that every driver accepts.
func (m *NewMessage) Args() ([]any, error) {
	if (m.Payload == nil) == (m.Body == nil) {
		return nil, errors.New("set Payload or Body, and not both")
	}
	if len(m.RoutingKey) > LongestName {
		return nil, fmt.Errorf("routing key has %d bytes, must have at most %d", len(m.RoutingKey), LongestName)
	}
	if m.Exchange != nil && len(*m.Exchange) > LongestName {
		return nil, fmt.Errorf("exchange has %d bytes, must have at most %d", len(*m.Exchange), LongestName)
	}
	if m.MaxAttempts != nil && (*m.MaxAttempts < 0 || *m.MaxAttempts > math.MaxInt16) {
		return nil, fmt.Errorf("max attempts is %d, must be from 0 (no limit) to %d", *m.MaxAttempts, math.MaxInt16)
	}
	var texts [4]any
	for i, field := range []struct {
		name  string
		value any
	}{
		{"Payload", m.Payload},
		{"Headers", nilIf(len(m.Headers) == 0, m.Headers)},
		{"Properties", nilIf(len(m.Properties) == 0, m.Properties)},
		{"RedactedPayload", m.RedactedPayload},
	} {
		var err error
		if texts[i], err = jsonText(field.value); err != nil {
			return nil, fmt.Errorf("marshal %s: %w", field.name, err)
		}
	}
	return []any{
		nilIf(m.MessageID == UUID{}, m.MessageID.String()), pointed(m.Exchange), m.RoutingKey,
		nilIf(m.OrderingKey == "", m.OrderingKey), texts[0], nilIf(m.Body == nil, m.Body), texts[1], texts[2], texts[3],
		nilIf(m.NotBefore.IsZero(), m.NotBefore), pointed(m.MaxAttempts), nilIf(m.ExpiresAt.IsZero(), m.ExpiresAt),
		nilIf(m.CoalesceKey == "", m.CoalesceKey),
	}, nil
}

func nilIf(unset bool, value any) any {
	if unset {
		return nil
	}
	return value
}

func pointed[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}

// jsonText returns a string or nil.
func jsonText(value any) (any, error) {
	switch v := value.(type) {
	case nil:
		return nil, nil
	case json.RawMessage:
		return string(v), nil
	case []byte:
		return string(v), nil
	}
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return string(text), nil
}
