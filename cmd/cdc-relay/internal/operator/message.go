package operator

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgtime"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Message is a row of the outbox, a dead letter, or a message of the history; its State tells which.
type Message struct {
	State       State
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
	// LastError and the names above end after 1,000 characters, with their size, if they are longer than mostText.
	LastError         *string
	PossibleDuplicate bool
	// IsRedacted: Redacted replaces the payload for display. Redacted is nil if it is too large.
	IsRedacted bool
	Redacted   []byte
	// Payload is the body, or nil if it was not asked for, is redacted, or is too large.
	Payload []byte
	// PayloadSize is the size of the body in bytes. It is AtLeast for a large body that is stored compressed.
	PayloadSize Count
	Binary      bool // Payload is payload_bytes, not JSON
	// Large are values that are too large to show.
	Large []Large
	// ReadAt is the database's time of the query.
	ReadAt time.Time

	// Reason and DeadAt are those of a dead letter, PublishedAt that of a published message. All other fields are of a
	// row of the outbox.
	Reason              string
	DeadAt, PublishedAt time.Time

	AvailableAt *time.Time // nil: at once
	LockedBy    int32      // the process id of the session that has locked it; 0: none
	// Session has locked the row or the first one of its key; nil: none, or it has ended. Only Find sets it, and what
	// follows.
	Session *Session
	// Before counts the older rows of its ordering key, First is the oldest of them.
	Before Count
	First  *Message
	// DeadOfKey counts the dead letters of its key, OldestDeadOfKey is the lowest id.
	DeadOfKey       Count
	OldestDeadOfKey int64
}

// IsLarge reports whether one of these columns is too large to show.
func (m Message) IsLarge(columns ...string) bool {
	return slices.ContainsFunc(m.Large, func(l Large) bool { return slices.Contains(columns, l.Column) })
}

// Header returns the value of a header as text: "" without a string, a number or a boolean of this name, or if the
// headers are too large to show.
func (m Message) Header(name string) string {
	var headers map[string]json.RawMessage
	if name == "" || json.Unmarshal(m.Headers, &headers) != nil { // null, or not an object
		return ""
	}
	value := headers[name]
	var text string
	switch {
	case len(value) == 0 || value[0] == 'n' || value[0] == '{' || value[0] == '[':
		return ""
	case json.Unmarshal(value, &text) == nil:
		return text
	}
	return string(value)
}

// Age is the time since the row was created.
func (m Message) Age() time.Duration { return m.ReadAt.Sub(m.CreatedAt) }

// storedColumns are the first columns for scanMessage, with values of up to {most} bytes. The statement must name the
// rows r. A redacted payload never leaves the database.
func storedColumns(payload bool) string {
	body, wanted := `NULL::bytea`, `false`
	if payload {
		wanted = `r.redacted_payload IS NULL`
		body = `CASE WHEN ` + wanted + ` THEN coalesce(` + shownBytes("r.payload_bytes") + `,
         CASE WHEN r.payload_bytes IS NULL THEN pg_catalog.convert_to(` + shownJSON("r.payload") + `, 'UTF8') END) END`
	}
	return `r.id, r.message_id, ` + shownText("r.exchange") + `, ` + shownText("r.routing_key") + `, ` +
		shownText("r.ordering_key") + `,
       ` + shownJSON("r.headers") + `, pg_catalog.pg_column_size(r.headers), ` + shownJSON("r.properties") + `,
       pg_catalog.pg_column_size(r.properties),
       r.schema_version, r.created_at, r.expires_at, r.attempts, r.max_attempts, ` + shownText("r.last_error") + `,
       coalesce(r.possible_duplicate, false), ` + shownJSON("r.redacted_payload") + `,
       pg_catalog.pg_column_size(r.redacted_payload),
       ` + body + `, CASE WHEN ` + wanted + ` THEN coalesce(pg_catalog.pg_column_size(r.payload_bytes),
         pg_catalog.pg_column_size(r.payload)) END,
       ` + payloadSize() + `, r.payload_bytes IS NOT NULL, clock_timestamp()`
}

// scanMessage reads the columns of a source, and further columns of a query.
func scanMessage(row pgx.CollectableRow, more ...any) (Message, error) {
	m := Message{Before: Count{Precision: Exact}, DeadOfKey: Count{Precision: Exact}}
	var created, expires, available, ended pgtype.Timestamptz
	var sizes struct{ headers, properties, redacted, payload *int64 }
	err := row.Scan(append([]any{
		&m.ID, (*[16]byte)(&m.MessageID), &m.Exchange, &m.RoutingKey, &m.OrderingKey, &m.Headers, &sizes.headers,
		&m.Properties, &sizes.properties, &m.SchemaVersion, &created, &expires, &m.Attempts, &m.MaxAttempts,
		&m.LastError, &m.PossibleDuplicate, &m.Redacted, &sizes.redacted, &m.Payload, &sizes.payload, &m.PayloadSize.N,
		&m.PayloadSize.Precision, &m.Binary, &m.ReadAt, &m.LockedBy, &m.State, &available, &m.Reason, &ended,
	}, more...)...)
	m.CreatedAt, m.ExpiresAt, m.ReadAt = pgtime.FromRequired(created), pgtime.FromColumn(expires), m.ReadAt.UTC()
	m.IsRedacted = sizes.redacted != nil
	body := "payload"
	if m.Binary {
		body = "payload_bytes"
	}
	m.Large = slices.Concat(larger("headers", m.Headers, sizes.headers),
		larger("properties", m.Properties, sizes.properties),
		larger("redacted_payload", m.Redacted, sizes.redacted), larger(body, m.Payload, sizes.payload))
	m.AvailableAt = pgtime.FromColumn(available)
	switch m.State {
	case Dead:
		m.DeadAt = pgtime.FromRequired(ended)
	case Published:
		m.PublishedAt = pgtime.FromRequired(ended)
	}
	return m, err
}

// Name names a message, by the id of its row, by its message_id, or by the id of its Celery task.
type Name struct {
	id        *int64
	messageID *outbox.UUID
}

// ParseName parses the id of a row, a message_id, or the id of a Celery task, if that is a UUID as usual.
func ParseName(text string) (Name, error) {
	if id, err := strconv.ParseInt(text, 10, 64); err == nil {
		return Name{id: &id}, nil
	}
	messageID, err := outbox.ParseUUID([]byte(strings.ToLower(text)))
	if err != nil {
		return Name{}, fmt.Errorf("%q: want the id of a row, such as 42, "+
			"or a message_id, such as 5f0c4a86-5e0b-4f0c-9b0e-6b1d3c1f9a52", text)
	}
	return Name{messageID: &messageID}, nil
}

func (n Name) String() string {
	if n.id != nil {
		return strconv.FormatInt(*n.id, 10)
	}
	return n.messageID.String()
}

// IsRow reports whether it is the id of a row.
func (n Name) IsRow() bool { return n.id != nil }

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

// addMessageID adds the condition that an id is the message_id of r, or that of its Celery task. The message_id of a
// task's retry begins with the first 12 bytes of the task id (clients/python/cdc_relay/celery.py): an index finds it.
func (c *conditions) addMessageID(id outbox.UUID) {
	first, last := id, id
	copy(first[12:], []byte{0, 0, 0, 0})
	copy(last[12:], []byte{255, 255, 255, 255})
	c.add("r.message_id BETWEEN %s::uuid AND %s::uuid AND "+
		"(r.message_id = %s::uuid OR r.headers ->> 'id'::text = %s::text)",
		first.String(), last.String(), id.String(), id.String())
}

// Names returns the messages that the filter names, each once.
func (f Filter) Names() (names []Name) {
	for _, id := range f.IDs {
		names = append(names, Name{id: &id})
	}
	for _, messageID := range f.MessageIDs {
		names = append(names, Name{messageID: &messageID})
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(names, func(n Name) bool {
		again := seen[n.String()]
		seen[n.String()] = true
		return again
	})
}

// Named reports whether the filter names messages.
func (f Filter) Named() bool { return len(f.IDs)+len(f.MessageIDs) > 0 }
