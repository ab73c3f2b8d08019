// Package outbox holds what every part of the relay speaks of: a message (one
// row of the outbox table), the result of publishing it, and a helper that
// enqueues one inside an application's own transaction. It imports nothing else
// of this module.
package outbox

import (
	"encoding/hex"
	"errors"
	"math"
	"time"
)

// SchemaVersion is the newest value of the column schema_version that this
// relay understands. A row with a greater one stays untouched in the table
// until a relay that knows it runs.
const SchemaVersion = 1

// PossibleDuplicateHeader is the AMQP header, always true, of a message that may
// have been published before. A message without it has certainly not been.
const PossibleDuplicateHeader = "x-possible-duplicate"

// UUID is a message id as it stands in the column message_id.
type UUID [16]byte

// String returns the canonical form, 36 characters in lower case.
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

// ParseUUID reads the canonical form, as Postgres prints it.
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

// MarshalText writes the canonical form, so that JSON has it as a string.
func (u UUID) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (u *UUID) UnmarshalText(text []byte) error {
	read, err := ParseUUID(text)
	if err != nil {
		return err
	}
	*u = read
	return nil
}

// HeaderTypes are the types of the columns that --header-columns can send.
const HeaderTypes = "text, character varying, character, uuid, smallint, integer, bigint, boolean"

// Header is one that a column of the row makes. Its value is a string, an int64 or a bool.
type Header struct {
	Name  string
	Value any
}

// Ref names one row while it exists. The id alone would not do:
// TRUNCATE … RESTART IDENTITY hands out ids again.
type Ref struct {
	ID        int64
	MessageID UUID
}

// Message is one row of the outbox table. The slices belong to the message and
// are not changed after it was made.
type Message struct {
	// ID is the insertion order.
	ID        int64
	MessageID UUID
	// Exchange is nil where the row leaves the choice to the relay.
	Exchange   *string
	RoutingKey string
	// OrderingKey is nil where no order is promised.
	OrderingKey *string
	// Payload is the body, byte for byte as inserted. It is nil if both columns are
	// null, and not nil for an empty payload_bytes.
	Payload []byte
	// Binary tells that the body came from payload_bytes, not from payload (JSON).
	Binary bool
	// BothPayloads tells that both columns are set; see Defect.
	BothPayloads bool
	// NoRoutingKey tells that the column is null, in a table that somebody has changed; see Defect.
	NoRoutingKey bool
	// Headers and Properties are JSON objects, or nil.
	Headers    []byte
	Properties []byte
	// Extra are headers that the relay adds from other columns. Headers has precedence.
	Extra []Header
	// Superseded tells that a newer row with its coalesce and ordering key waits: it is not published.
	Superseded bool
	// SchemaVersion tells how to read the row; see the constant of that name.
	SchemaVersion int
	CreatedAt     time.Time
	// AvailableAt is the time before which the message must not leave; zero where
	// the column is null. It is the fence with which the row is settled: who has
	// changed it meanwhile has the row.
	AvailableAt time.Time
	// ExpiresAt is the time from which on the message is not published, by the database's clock; zero where the column is
	// null.
	ExpiresAt time.Time
	// Deadline is ExpiresAt by the clock of this process, or a little before it. Zero: the message does not expire.
	Deadline time.Time
	// Attempts counts the rejections so far.
	Attempts int
	// MaxAttempts is how many refusals make the message a dead letter, in place of the relay's --max-retries; 0: no
	// number does. Nil where the row leaves the choice to the relay.
	MaxAttempts *int
	// PossibleDuplicate tells that the message may have been published before.
	PossibleDuplicate bool
	// XID is the transaction that inserted the row, where the stream brought it;
	// 0 where it was read from the table (and so was visible).
	XID uint32
	// TakenAt is when certainly no other relay could have published the message: when the
	// server sent it, or later. A publisher marks one that it could not send within CertainFor.
	TakenAt time.Time
	// CommittedAt is when the inserting transaction committed, by the database's clock,
	// where the stream brought the row; zero where it was read from the table.
	CommittedAt time.Time
	// SentAt is when the publisher sent the message last; zero while it has not, and
	// with publishers that do not tell.
	SentAt time.Time
}

// CertainFor is how long after TakenAt a message may still be encoded without the mark, and WriteFor how long after that it
// may be written to the broker. Another relay takes over a free slot only later than both.
const (
	CertainFor = 500 * time.Millisecond
	WriteFor   = 500 * time.Millisecond
)

// MayBeKnown tells whether the message has to carry PossibleDuplicateHeader when it is
// sent now.
func (m *Message) MayBeKnown() bool {
	return m.PossibleDuplicate || (!m.TakenAt.IsZero() && Elapsed(m.TakenAt, time.Now()) > CertainFor)
}

// Elapsed is the time between two readings, by the wall clock if that says more: the monotonic one may stand still with
// the machine.
func Elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// WasMarked tells whether the message carried PossibleDuplicateHeader when it was sent.
func (m *Message) WasMarked() bool {
	return m.PossibleDuplicate || (!m.TakenAt.IsZero() && Elapsed(m.TakenAt, m.SentAt) > CertainFor)
}

// TimeLeft is how long the message may still be published; expires: not for ever. It is zero or less for one that has
// expired. Every publisher has to ask, and to report such a message as Impossible with ReasonExpired.
func (m *Message) TimeLeft(now time.Time) (left time.Duration, expires bool) {
	if m.Deadline.IsZero() {
		return 0, false
	}
	// By the wall clock if that says less: the monotonic one may stand still with the machine.
	return min(m.Deadline.Sub(now), m.Deadline.Round(0).Sub(now.Round(0))), true
}

// Ref names the message's row.
func (m *Message) Ref() Ref { return Ref{ID: m.ID, MessageID: m.MessageID} }

// NextAttempts is Attempts after one more rejection. It stays at what the column can
// hold: an application may have set it.
func (m *Message) NextAttempts() int { return min(m.Attempts+1, math.MaxInt32) }

// Size is what the message holds of memory, in bytes, as the relay's budget
// counts it.
func (m *Message) Size() int {
	const overhead = 256 // the struct, its place in the maps and queues
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
