package outbox

import (
	"cmp"
	"fmt"
	"time"
)

// MostHeaderBytes limits headers, properties, and each header from another column of a row: in bytes, as the database
// sends them. All of them must fit into one frame of RabbitMQ, usually 131,072 bytes. Eight times as much is
// always too much, because JSON takes up to six bytes for one.
const MostHeaderBytes = 8 * 131072

// Oversize is a column with more than MostHeaderBytes.
type Oversize struct {
	Column string
	Bytes  int
}

// Fits reports whether a column with this many bytes belongs into the message. If not, the message remembers the column
// without its value: nothing may copy or parse that. Decoders call it for headers, properties and Extra.
func (m *Message) Fits(column string, bytes int) bool {
	if bytes <= MostHeaderBytes {
		return true
	}
	if m.Oversize == nil {
		m.Oversize = &Oversize{Column: column, Bytes: bytes}
	}
	return false
}

// Defect returns why no publisher can publish the message at this time; an empty reason: nothing is wrong. The relay
// calls it before Publish. A publisher in which messages wait calls it again before it sends one, because a message may
// expire meanwhile. The table has no CHECKs, so any mistake can be in a row.
func (m *Message) Defect(now time.Time) (Reason, string) {
	switch {
	case m.NoRoutingKey:
		return ReasonInvalidRow, "routing_key is null: set it"
	case m.BothPayloads:
		return ReasonInvalidRow, "payload and payload_bytes are both set: set only one of them"
	case m.Payload == nil:
		return ReasonInvalidRow, "payload and payload_bytes are both null: set one of them"
	case m.SchemaVersion < 1:
		return ReasonInvalidRow, fmt.Sprintf("schema_version is %d, must be at least 1: leave it out", m.SchemaVersion)
	case m.Attempts < 0:
		return ReasonInvalidRow, fmt.Sprintf("attempts is %d, must not be negative: leave it out, only the relay sets it", m.Attempts)
	case m.MaxAttempts != nil && *m.MaxAttempts < 0:
		return ReasonInvalidRow, fmt.Sprintf("max_attempts is %d, must not be negative: 0 is no limit", *m.MaxAttempts)
	case m.Oversize != nil:
		reason := ReasonInvalidHeaders
		if m.Oversize.Column == "properties" {
			reason = ReasonInvalidProperties
		}
		return reason, fmt.Sprintf("%s has %d bytes, must have at most %d", m.Oversize.Column, m.Oversize.Bytes, MostHeaderBytes)
	}
	if left, expires := m.TimeLeft(now); expires && left < time.Millisecond { // AMQP counts the time left in milliseconds
		return ReasonExpired, fmt.Sprintf("expires_at, %s, has passed", cmp.Or(m.ExpiresAt, m.Deadline).Format(time.RFC3339Nano))
	}
	return "", ""
}
