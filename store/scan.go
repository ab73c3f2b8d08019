package store

import (
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgtime"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// scanner reads rows of messageColumns, possible_duplicate, and further columns. Use one for each query: its scan
// targets are made once, which saves most of the cost of reading a row.
type scanner struct {
	message               outbox.Message
	payload, payloadBytes []byte
	created, available    pgtype.Timestamptz
	expires               pgtype.Timestamptz
	duplicate             pgtype.Bool
	routingKey            pgtype.Text
	attempts, maxAttempts pgtype.Int4
	places                []any
}

// scannable is the current row of a query.
type scannable interface{ Scan(places ...any) error }

// newScanner returns a scanner; more are the targets of further columns.
func newScanner(more ...any) *scanner {
	s := &scanner{}
	m := &s.message
	s.places = append([]any{
		&m.ID, (*[16]byte)(&m.MessageID), &m.Exchange, &s.routingKey, &m.OrderingKey, &s.payload, &s.payloadBytes,
		&m.Headers, &m.Properties, &m.SchemaVersion, &s.created, &s.available, &s.expires, &s.attempts, &s.maxAttempts, &s.duplicate,
	}, more...)
	return s
}

// scan reads one row. The message owns its memory.
func (s *scanner) scan(row scannable) (*outbox.Message, error) {
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
	m.CreatedAt, m.AvailableAt, m.ExpiresAt = pgtime.FromColumn(s.created), pgtime.FromColumn(s.available), pgtime.FromColumn(s.expires)
	m.PossibleDuplicate = s.duplicate.Bool
	m.RoutingKey, m.NoRoutingKey, m.Attempts = s.routingKey.String, !s.routingKey.Valid, int(s.attempts.Int32)
	if s.maxAttempts.Valid {
		most := int(s.maxAttempts.Int32)
		m.MaxAttempts = &most
	}
	return &m, nil
}
