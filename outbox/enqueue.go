package outbox

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// NewMessage is what an application enqueues. RoutingKey and one of Payload and
// Body are needed, all else has defaults.
type NewMessage struct {
	// MessageID tells duplicates at the consumer; NewMessageID makes one. Zero: the
	// database makes one.
	MessageID UUID
	// Exchange is nil for the one that the relay was started with; AMQP's default
	// exchange is "".
	Exchange   *string
	RoutingKey string
	// OrderingKey: messages of one key leave one at a time, in the order in which
	// they were enqueued. Empty: no order promised.
	OrderingKey string
	// Payload is the body as JSON: a json.RawMessage or []byte is sent byte for byte,
	// anything else is marshalled.
	Payload any
	// Body is a binary body, in place of Payload.
	Body []byte
	// Headers are AMQP headers: strings, numbers, booleans, and lists and maps of them.
	Headers map[string]any
	// Properties are AMQP properties, by name: content_type, priority,
	// correlation_id, expiration and so on.
	Properties map[string]any
	// RedactedPayload is what people and tools are shown in place of the payload.
	RedactedPayload any
	// NotBefore is the time before which the message must not leave. Zero: at once.
	NotBefore time.Time
}

// NewMessageID returns a random one (a UUID of version 4).
func NewMessageID() UUID {
	var u UUID
	rand.Read(u[:]) //nolint:errcheck // never fails
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return u
}

// PgxExecer is a pgx.Tx; a pgx.Conn and a pgxpool.Pool are, too.
type PgxExecer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// SQLExecer is a *sql.Tx of database/sql; a *sql.DB and a *sql.Conn are, too.
type SQLExecer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Enqueue inserts messages in a transaction of pgx. They are published after it
// committed, and never where it is rolled back. The role needs INSERT on the table
// and nothing else.
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

// InsertSQL is the statement that Enqueue executes, for those who batch it
// themselves; NewMessage.Args are its arguments. It returns nothing: RETURNING
// would need more than the privilege to INSERT.
func (t Table) InsertSQL() string {
	return "INSERT INTO " + t.SQL() + ` (message_id, exchange, routing_key, ordering_key, payload, payload_bytes, headers, properties, redacted_payload, available_at)
VALUES (coalesce($1::text::uuid, gen_random_uuid()), $2::text, $3::text, $4::text, $5::text::json, $6::bytea, $7::text::jsonb, $8::text::jsonb, $9::text::json, $10::timestamptz)`
}

// Args are the arguments of InsertSQL, of types that every driver knows.
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
	args := make([]any, 10)
	if m.MessageID != (UUID{}) {
		args[0] = m.MessageID.String()
	}
	if m.Exchange != nil {
		args[1] = *m.Exchange
	}
	args[2] = m.RoutingKey
	if m.OrderingKey != "" {
		args[3] = m.OrderingKey
	}
	if m.Body != nil {
		args[5] = m.Body
	}
	if !m.NotBefore.IsZero() {
		args[9] = m.NotBefore
	}
	for _, field := range []struct {
		name  string
		at    int
		value any
	}{
		{"Payload", 4, m.Payload},
		{"Headers", 6, nilIfEmpty(m.Headers)},
		{"Properties", 7, nilIfEmpty(m.Properties)},
		{"RedactedPayload", 8, m.RedactedPayload},
	} {
		text, err := jsonText(field.value)
		if err != nil {
			return nil, fmt.Errorf("marshal %s: %w", field.name, err)
		}
		args[field.at] = text
	}
	return args, nil
}

func nilIfEmpty(m map[string]any) any {
	if len(m) == 0 {
		return nil
	}
	return m
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
