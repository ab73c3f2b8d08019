package operator

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgtime"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// StoredMessage is a row for display.
type StoredMessage struct {
	ID          int64
	MessageID   outbox.UUID
	Exchange    *string // nil: the relay's --exchange
	RoutingKey  string
	OrderingKey *string
	// Headers and Properties are JSON objects, or nil.
	Headers, Properties []byte
	SchemaVersion       int
	CreatedAt           time.Time
	ExpiresAt           *time.Time // nil: never
	Attempts            int
	MaxAttempts         *int // nil: --max-retries of the relay applies
	LastError           *string
	PossibleDuplicate   bool
	// Redacted replaces the payload for display, or is nil.
	Redacted []byte
	// Payload is the body, or nil if it was not asked for or is redacted.
	Payload     []byte
	PayloadSize int64 // bytes
	Binary      bool  // Payload is payload_bytes, not JSON
	// ReadAt is the database's time of the query.
	ReadAt time.Time
}

// Age is the time since the row was created.
func (m StoredMessage) Age() time.Duration { return m.ReadAt.Sub(m.CreatedAt) }

func (m StoredMessage) rowID() int64 { return m.ID }

// storedColumns are the columns for scanStored. The statement must name the rows r. A redacted payload never leaves the
// database.
func storedColumns(payload bool) string {
	body := `NULL::bytea`
	if payload {
		body = `CASE WHEN r.redacted_payload IS NULL THEN coalesce(r.payload_bytes, convert_to(r.payload::text, 'UTF8')) END`
	}
	return `r.id, r.message_id, r.exchange, r.routing_key, r.ordering_key, r.headers::text, r.properties::text,
       r.schema_version, r.created_at, r.expires_at, r.attempts, r.max_attempts, r.last_error, coalesce(r.possible_duplicate, false), r.redacted_payload::text,
       ` + body + `, coalesce(octet_length(r.payload_bytes), octet_length(r.payload::text), 0), r.payload_bytes IS NOT NULL, clock_timestamp()`
}

// scanStored reads storedColumns and further columns of a query.
func scanStored(row pgx.CollectableRow, more ...any) (StoredMessage, error) {
	var m StoredMessage
	var created, expires pgtype.Timestamptz
	var headers, properties, redacted *string
	err := row.Scan(append([]any{
		&m.ID, (*[16]byte)(&m.MessageID), &m.Exchange, &m.RoutingKey, &m.OrderingKey, &headers, &properties,
		&m.SchemaVersion, &created, &expires, &m.Attempts, &m.MaxAttempts, &m.LastError, &m.PossibleDuplicate, &redacted,
		&m.Payload, &m.PayloadSize, &m.Binary, &m.ReadAt,
	}, more...)...)
	m.Headers, m.Properties, m.Redacted = bytesOf(headers), bytesOf(properties), bytesOf(redacted)
	m.CreatedAt, m.ExpiresAt, m.ReadAt = pgtime.FromRequired(created), pgtime.FromColumn(expires), m.ReadAt.UTC()
	return m, err
}

func bytesOf(text *string) []byte {
	if text == nil {
		return nil
	}
	return []byte(*text)
}

// Name names a message, by the id of its row or by its message_id.
type Name struct {
	id        *int64
	messageID *outbox.UUID
}

// ParseName parses a row id or a message_id.
func ParseName(text string) (Name, error) {
	if id, err := strconv.ParseInt(text, 10, 64); err == nil {
		return Name{id: &id}, nil
	}
	messageID, err := outbox.ParseUUID([]byte(strings.ToLower(text)))
	if err != nil {
		return Name{}, fmt.Errorf("%q: want the id of a row, such as 42, or a message_id, such as 5f0c4a86-5e0b-4f0c-9b0e-6b1d3c1f9a52", text)
	}
	return Name{messageID: &messageID}, nil
}

func (n Name) String() string {
	if n.id != nil {
		return strconv.FormatInt(*n.id, 10)
	}
	return n.messageID.String()
}

func (n Name) filter() Filter {
	var f Filter
	f.Add(n)
	return f
}

// Add makes the filter also match this message.
func (f *Filter) Add(n Name) {
	if n.id != nil {
		f.IDs = append(f.IDs, *n.id)
	} else {
		f.MessageIDs = append(f.MessageIDs, *n.messageID)
	}
}
