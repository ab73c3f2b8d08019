package outbox

import (
	"bytes"
	"cmp"
	"fmt"
	"time"
)

// MostHeaderBytes limits each column other than the payload that a sweep or the stream takes: in bytes, as the database
// sends it. Headers and properties must fit into one frame of RabbitMQ, usually 131,072 bytes. Eight times as much is
// always too much, because JSON takes up to six bytes for one.
const MostHeaderBytes = 8 * 131072

// MostStreamed limits the body that the stream copies. Larger ones are read from the table, one at a time: the stream
// cannot wait for room while the reader of the socket holds another copy.
const MostStreamed = 32 << 20

// Fits reports whether a column with this many bytes belongs into the message. If not, the message remembers the column
// without its value: nothing may copy or parse that.
func (m *Message) Fits(column string, bytes int) bool {
	if bytes <= MostHeaderBytes {
		return true
	}
	if m.Oversize == "" {
		m.Oversize = column
	}
	return false
}

// Defect returns why no publisher can publish the message at this time; an empty reason: nothing is wrong. The relay
// calls it before Publish. A publisher in which messages wait calls it again before it sends one, because a message may
// expire meanwhile. The table has no CHECKs, so any mistake can be in a row.
func (m *Message) Defect(now time.Time) (Reason, string) {
	switch {
	case m.Oversize != "":
		return m.oversize()
	case m.Unreadable != "":
		return ReasonInvalidRow, "the database cannot send the row: " + m.Unreadable
	case m.Unread > 0:
		return ReasonTooLarge, TooLarge(m.Unread, m.MostBody)
	case m.NoRoutingKey:
		return ReasonInvalidRow, "routing_key is null: set it"
	case m.BothPayloads:
		return ReasonInvalidRow, "payload and payload_bytes are both set: set only one of them"
	case m.Payload == nil:
		return ReasonInvalidRow, "payload and payload_bytes are both null: set one of them"
	case m.SchemaVersion < 1:
		return ReasonInvalidRow, fmt.Sprintf("schema_version is %d, must be at least 1: leave it out", m.SchemaVersion)
	case m.Attempts < 0:
		const text = "attempts is %d, must not be negative: leave it out, only the relay sets it"
		return ReasonInvalidRow, fmt.Sprintf(text, m.Attempts)
	case m.MaxAttempts != nil && *m.MaxAttempts < 0:
		return ReasonInvalidRow, fmt.Sprintf("max_attempts is %d, must not be negative: 0 is no limit", *m.MaxAttempts)
	case len(m.RoutingKey) > LongestName:
		return ReasonInvalidRouting, tooLong("routing_key")
	case m.Exchange != nil && len(*m.Exchange) > LongestName:
		return ReasonInvalidRouting, tooLong("exchange")
	case notObject(m.Headers) != "":
		return ReasonInvalidHeaders, "headers: must be a JSON object, not JSON " + notObject(m.Headers)
	case notObject(m.Properties) != "":
		return ReasonInvalidProperties, "properties: must be a JSON object, not JSON " + notObject(m.Properties)
	}
	// AMQP counts the time left in milliseconds.
	if left, expires := m.TimeLeft(now); expires && left < time.Millisecond {
		at := cmp.Or(m.ExpiresAt, m.Deadline)
		return ReasonExpired, fmt.Sprintf("expires_at, %s, has passed", at.Format(time.RFC3339Nano))
	}
	return "", ""
}

func (m *Message) oversize() (Reason, string) {
	large := fmt.Sprintf("%s is too large: more than %d bytes", m.Oversize, MostHeaderBytes)
	switch m.Oversize {
	case "exchange", "routing_key":
		return ReasonInvalidRouting, large
	case "properties":
		return ReasonInvalidProperties, large + ", or a number of more than 1,000 digits"
	}
	return ReasonInvalidHeaders, large + ", or a number of more than 1,000 digits"
}

// TooLarge says that a broker accepts no body of this size, in RabbitMQ's words.
func TooLarge(size, most int) string {
	return fmt.Sprintf("message size %d is larger than max size %d", size, most)
}

func tooLong(column string) string {
	return fmt.Sprintf("%s is longer than %d bytes", column, LongestName)
}

// notObject returns what JSON is if it is no object, by its first character. It does not parse.
func notObject(json []byte) string {
	text := bytes.TrimLeft(json, " \t\r\n")
	if len(text) == 0 {
		return ""
	}
	switch c := text[0]; {
	case c == '[':
		return "array"
	case c == '"':
		return "string"
	case c == 't' || c == 'f':
		return "bool"
	case c == 'n':
		return "null"
	case c == '-' || '0' <= c && c <= '9':
		return "number"
	}
	return ""
}
