package outbox

import "fmt"

// Defect returns what is wrong with the row for any broker, and how to fix it; "": nothing. The table has no CHECKs, so
// every publisher must call it. Report such a message as Impossible with ReasonInvalidRow.
func (m *Message) Defect() string {
	switch {
	case m.NoRoutingKey:
		return "routing_key is null: set it"
	case m.BothPayloads:
		return "payload and payload_bytes are both set: set only one of them"
	case m.Payload == nil:
		return "payload and payload_bytes are both null: set one of them"
	case m.SchemaVersion < 1:
		return fmt.Sprintf("schema_version is %d, must be at least 1: leave it out", m.SchemaVersion)
	case m.Attempts < 0:
		return fmt.Sprintf("attempts is %d, must not be negative: leave it out, only the relay sets it", m.Attempts)
	case m.MaxAttempts != nil && *m.MaxAttempts < 0:
		return fmt.Sprintf("max_attempts is %d, must not be negative: 0 is no limit", *m.MaxAttempts)
	}
	return ""
}
