// Package outbox has the types that all parts of the relay share: a message (one row of the outbox table) and its
// result. It also has a helper to enqueue messages in an application's transaction. It imports no other package of this
// module.
package outbox

import (
	"encoding/hex"
	"errors"
	"math"
	"time"
)

// SchemaVersion is the newest schema_version that this relay understands. Rows with a greater one stay untouched in the
// table until a newer relay runs.
const SchemaVersion = 1

// PossibleDuplicateHeader is the AMQP header, always true, of a message that may have been published before. A message
// without it has certainly not been published before.
const PossibleDuplicateHeader = "x-possible-duplicate"

// UUID is a message id, as in the column message_id.
type UUID [16]byte

// String returns the canonical form: 36 characters in lower case.
func (u UUID) String() string {
	var b [36]byte
	hex.Encode(b[0:8], u[0:4])
	b[8] = '-'
	hex.Encode(b[9:13], u[4:6])
	b[13] = '-'
	hex.Encode(b[14:18], u[6:8])
	b[18] = '-'
	hex.Encode(b[19:23], u[8:10])
	b[23] = '-'
	hex.Encode(b[24:36], u[10:16])
	return string(b[:])
}

// ParseUUID parses the canonical form, as Postgres prints it.
func ParseUUID(s []byte) (UUID, error) {
	var u UUID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return u, errors.New("a UUID has the form xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")
	}
	for _, part := range [...][3]int{{0, 0, 8}, {4, 9, 13}, {6, 14, 18}, {8, 19, 23}, {10, 24, 36}} {
		if _, err := hex.Decode(u[part[0]:], s[part[1]:part[2]]); err != nil {
			return UUID{}, errors.New("a UUID has hexadecimal digits only")
		}
	}
	return u, nil
}

// MarshalText returns the canonical form, so that it is a string in JSON.
func (u UUID) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText parses the canonical form.
func (u *UUID) UnmarshalText(text []byte) error {
	read, err := ParseUUID(text)
	if err != nil {
		return err
	}
	*u = read
	return nil
}

// HeaderTypes are the types of columns that can be sent as headers.
const HeaderTypes = "text, character varying, character, uuid, smallint, integer, bigint, boolean"

// Header is a header from a column of the row. Its value is a string, an int64 or a bool.
type Header struct {
	Name  string
	Value any
}

// Ref identifies a row while it exists. The id is not enough: TRUNCATE … RESTART IDENTITY assigns ids again.
type Ref struct {
	ID        int64
	MessageID UUID
}

// Row are the columns of one row of the outbox table. It owns its slices. The reader of the row makes it, and it does
// not change.
type Row struct {
	// ID is the insertion order.
	ID        int64
	MessageID UUID
	// Exchange is nil if the row leaves the choice to the relay.
	Exchange   *string
	RoutingKey string
	// OrderingKey is nil if no order is promised.
	OrderingKey *string
	// Payload is the body, unchanged. It is nil if both columns are null, and not nil for an empty payload_bytes.
	Payload []byte
	// Binary: the body is from payload_bytes, not from payload (JSON).
	Binary bool
	// Headers and Properties are JSON objects, or nil.
	Headers    []byte
	Properties []byte
	// Extra are headers from other columns. Headers has precedence.
	Extra []Header
	// SchemaVersion is how to read the row; see the constant.
	SchemaVersion int
	CreatedAt     time.Time
	// AvailableAt is the earliest time to publish; nil if the column is null. It is also the fence of a settlement: a
	// row whose time was changed meanwhile is not settled.
	AvailableAt *time.Time
	// ExpiresAt is when the message expires, on the database's clock; nil if the column is null.
	ExpiresAt *time.Time
	// Attempts counts the rejections so far.
	Attempts int
	// MaxAttempts is how many rejections make the message a dead letter, instead of the relay's MaxRetries; 0: no
	// limit. Nil: MaxRetries applies.
	MaxAttempts *int
}

// Defects are what the reader of a row found wrong with it. See Message.Defect.
type Defects struct {
	// BothPayloads: both columns are set.
	BothPayloads bool
	// NoRoutingKey: the column is null, which needs a changed table.
	NoRoutingKey bool
	// Oversize is a column that is too large to be in the message; "": none.
	Oversize string
	// Unread is the size of the body if it was not read with the row: a sweep reads it later, or the broker accepts at
	// most MostBody bytes.
	Unread, MostBody int
	// Unreadable is the database's error if it cannot send the row. Only the id, the times and the ordering key are
	// set.
	Unreadable string
}

// Message is a row on its way to the broker.
type Message struct {
	Row
	Defects
	// PossibleDuplicate: the message may have been published before. The reader takes it from the row, and the core
	// sets it until the message is sent.
	PossibleDuplicate bool
	// Traced: a session may have locked the row when it was read.
	Traced bool
	// Superseded: a newer row with the same coalesce key and ordering key waits, so this one is not published.
	Superseded bool
	// Deadline is ExpiresAt on this process's clock, or slightly earlier; nil: never.
	Deadline *time.Time
	// XID is the inserting transaction of a streamed row; 0: read from the table, so the row was visible. Server is the
	// number of the server that streamed it: on another server, this transaction is visible or lost.
	XID    uint32
	Server int64
	// CommittedAt is the commit time of a streamed row, on the database's clock; zero: read from the table.
	CommittedAt time.Time
	// TakenAt is a time when certainly no other relay could have published the message. For a streamed row, it is when
	// the server sent the row, or later. A publisher marks a message that it sends more than CertainFor later.
	TakenAt time.Time
	// SentAt is when the publisher last sent the message; zero: not sent, or the publisher does not set it.
	SentAt time.Time
}

// CertainFor is how long after TakenAt a message may be encoded without the mark. WriteFor is how long after that it
// may be written to the broker. Another relay takes a free slot only later than both.
const (
	CertainFor = 500 * time.Millisecond
	WriteFor   = 500 * time.Millisecond
)

// MayBeKnown reports whether the message must have PossibleDuplicateHeader if it is sent now.
func (m *Message) MayBeKnown() bool {
	return m.PossibleDuplicate || (!m.TakenAt.IsZero() && Elapsed(m.TakenAt, time.Now()) > CertainFor)
}

// Elapsed returns the time between two readings, by the wall clock if that is longer. The monotonic clock may stop
// while the machine is suspended.
func Elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// WasMarked reports whether the message had PossibleDuplicateHeader when it was sent.
func (m *Message) WasMarked() bool {
	return m.PossibleDuplicate || (!m.TakenAt.IsZero() && Elapsed(m.TakenAt, m.SentAt) > CertainFor)
}

// TimeLeft returns how long the message may still be published; zero or less: it has expired. Expires is false if it
// never expires.
func (m *Message) TimeLeft(now time.Time) (left time.Duration, expires bool) {
	if m.Deadline == nil {
		return 0, false
	}
	// Use the shorter of both clocks: the monotonic clock may stop while the machine is suspended.
	return min(m.Deadline.Sub(now), m.Deadline.Round(0).Sub(now.Round(0))), true
}

// Ref returns the identity of the row.
func (m *Message) Ref() Ref { return Ref{ID: m.ID, MessageID: m.MessageID} }

// NextAttempts returns Attempts after one more rejection. It stops at the column's maximum, because an application may
// have set that.
func (m *Message) NextAttempts() int { return min(m.Attempts+1, math.MaxInt32) }

// Size returns the memory of the message in bytes, without a body that was not read, as the relay's budget counts it.
func (m *Message) Size() int {
	const overhead = 256 // the struct, and its entries in maps and queues
	size := overhead + len(m.RoutingKey) + len(m.Payload) + len(m.Headers) + len(m.Properties)
	if m.Exchange != nil {
		size += len(*m.Exchange)
	}
	if m.OrderingKey != nil {
		size += len(*m.OrderingKey)
	}
	for _, h := range m.Extra {
		text, _ := h.Value.(string)
		size += len(h.Name) + len(text) + 48
	}
	return size
}
