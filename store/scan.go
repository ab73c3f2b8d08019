package store

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgtime"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// MessageColumnsAs returns the columns for a Scanner, each as an expression, such as r.payload. The statement must name
// the rows r. Headers are application columns.
func MessageColumnsAs(headers []string, as func(column string) string) string {
	var columns []string
	for _, c := range new(Scanner).columns() {
		columns = append(columns, as("r."+c.name))
	}
	for _, name := range headers {
		columns = append(columns, as("r."+outbox.QuoteIdentifier(name)))
	}
	return strings.Join(columns, ", ")
}

// Scanner reads rows of MessageColumnsAs and further columns. Use one for each query: its scan targets are made once,
// which saves most of the cost of reading a row. It is not safe for concurrent use.
type Scanner struct {
	message               outbox.Message
	payload, payloadBytes []byte
	created, available    pgtype.Timestamptz
	expires               pgtype.Timestamptz
	duplicate             pgtype.Bool
	routingKey            pgtype.Text
	attempts, maxAttempts pgtype.Int4
	headers               []string
	headerValues          []any
	places                []any
}

// column is a column of a message, with the target of its values.
type column struct {
	name  string
	place any
}

// columns are those of schema.Read.
func (s *Scanner) columns() []column {
	m := &s.message
	return []column{
		{"id", &m.ID},
		{"message_id", (*[16]byte)(&m.MessageID)},
		{"exchange", &m.Exchange},
		{"routing_key", &s.routingKey},
		{"ordering_key", &m.OrderingKey},
		{"payload", &s.payload},
		{"payload_bytes", &s.payloadBytes},
		{"headers", &m.Headers},
		{"properties", &m.Properties},
		{"schema_version", &m.SchemaVersion},
		{"created_at", &s.created},
		{"available_at", &s.available},
		{"expires_at", &s.expires},
		{"attempts", &s.attempts},
		{"max_attempts", &s.maxAttempts},
		{"possible_duplicate", &s.duplicate},
	}
}

// NewScanner returns a scanner for MessageColumnsAs with these headers; more are the targets of the columns that
// follow.
func NewScanner(headers []string, more ...any) *Scanner {
	s := &Scanner{headers: headers, headerValues: make([]any, len(headers))}
	for _, c := range s.columns() {
		s.places = append(s.places, c.place)
	}
	for i := range s.headerValues {
		s.places = append(s.places, &s.headerValues[i])
	}
	s.places = append(s.places, more...)
	return s
}

// Scan reads the current row of a query. The message owns its memory.
func (s *Scanner) Scan(row interface{ Scan(places ...any) error }) (*outbox.Message, error) {
	// A null leaves its target unchanged, so the values of the previous row are cleared.
	s.message = outbox.Message{}
	s.payload, s.payloadBytes = nil, nil
	if err := row.Scan(s.places...); err != nil {
		return nil, err
	}
	m := s.message
	m.Payload = s.payload
	if s.payloadBytes != nil {
		m.Payload, m.Binary, m.BothPayloads = s.payloadBytes, true, s.payload != nil
	}
	m.CreatedAt = pgtime.FromRequired(s.created)
	m.AvailableAt, m.ExpiresAt = pgtime.FromColumn(s.available), pgtime.FromColumn(s.expires)
	m.PossibleDuplicate = s.duplicate.Bool
	m.RoutingKey, m.NoRoutingKey, m.Attempts = s.routingKey.String, !s.routingKey.Valid, int(s.attempts.Int32)
	if s.maxAttempts.Valid {
		most := int(s.maxAttempts.Int32)
		m.MaxAttempts = &most
	}
	for i, value := range s.headerValues {
		if value != nil {
			m.Extra = append(m.Extra, outbox.Header{Name: s.headers[i], Value: headerValue(value)})
		}
	}
	return &m, nil
}

// headerValue converts a value of pgx for a header.
func headerValue(value any) any {
	switch v := value.(type) {
	case int16:
		return int64(v)
	case int32:
		return int64(v)
	case [16]byte:
		return outbox.UUID(v).String()
	case int64, bool, string:
		return v
	}
	return fmt.Sprint(value) // CheckHeaders rejects other types
}
